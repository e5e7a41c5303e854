// Runs the tasks of Rust's futures. The bundler replaces the runtime's `queueMicrotask` with this one, in the code of the
// edge only.

// About ten tasks per request. The runtime's queueMicrotask takes 2.4 µs. The callback of a resolved promise takes 0.1 µs.
const resolved = Promise.resolve();

/** Runs a task after the current one. */
export function queueMicrotask(task) {
  resolved.then(task).catch(trapped);
}

/** A trap that is not a panic, such as a stack overflow, calls no panic hook. */
function trapped(error) {
  // Workers that do not use `weir.mjs` have another recovery.
  globalThis.weirPanics?.failRequests(`trap: ${error?.message ?? error}`);
  throw error;
}
