import { mkdirSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The clone's own folder. */
export const root = resolve(dirname(fileURLToPath(import.meta.url)), "..", "..");

/** Where a development run keeps its data. With another folder and other ports, a clone can run a second stack. */
export const state = resolve(process.env.WEIR_STATE || join(root, ".weir"));

/** Per user: a fresh clone does not build the same tools again. */
export const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "weir");

/** Shared by all who use the cache, and held by who removes it; beside it, so that it outlives it. */
export const cacheLock = `${cache}.lock`;

/** Held while a stack chooses its ports and takes them. */
export const portsLock = `${cache}.ports.lock`;

export const logs = join(state, "logs");
export const nodeModules = join(root, "node_modules");
export const nodeBin = join(nodeModules, ".bin");

/** Held while something is built into this clone, so that `npm start` and `npm test` can run side by side. */
export const buildLock = join(root, ".weir", "build.lock");

export function makeStateFolder(): void {
  // Other users may enter, but not list: PostgreSQL does not run as root, and its user must reach its data.
  mkdirSync(state, { recursive: true, mode: 0o711 });
  mkdirSync(logs, { recursive: true });
}
