// A Worker's own handler behind the edge, for weir.mjs and for weir.rs.

/** These bindings with the Worker's own handler as a service. Requests bring their handlers. */
export function withHandler(bindings, next) {
  // BINDING in own.rs.
  return { ...bindings, WEIR_NEXT: new Own(next) };
}

/** A handler as a service. */
class Own {
  #next;

  constructor(next) {
    this.#next = next;
  }

  async fetch(url, { cache: _, caller, ...init }) {
    const request = new Request(url, init);
    // Where handlers and libraries of Workers read the address, including a second edge.
    const address = request.headers.get("x-real-ip");
    if (address !== null) request.headers.set("cf-connecting-ip", address);
    const { body } = request;
    const isUnread = () => body !== null && !body.locked && !request.bodyUsed;
    try {
      const response = await this.#next(request, JSON.parse(caller));
      if (response instanceof Response) {
        if (isUnread() && response.body !== body) await drain(body);
        return response;
      }
      throw new TypeError(`the handler returned a value of type ${typeof response}; expected a Response`);
    } catch (error) {
      // The edge has aborted the request, and knows the reason.
      if (init.signal?.aborted) throw init.signal.reason;
      if (isUnread()) await drain(body);
      // A thrown text must not be mistaken for one of those that glue.rs lists.
      throw error instanceof Error ? error : new Error(String(error));
    }
  }
}

/** The most that is read of a body that a handler leaves unread, in bytes, and for how long, in milliseconds. */
const maxDrained = 100_000_000;
const maxDrainMs = 10_000;

/** Drops a body. The runtime closes the connection of a client that still sends, and the client may not see the answer. */
async function drain(body) {
  const reader = body.getReader();
  const read = async () => {
    for (let size = 0; size < maxDrained; ) {
      const { done, value } = await reader.read();
      if (done) return;
      size += value.byteLength;
    }
  };
  let timer;
  const timeout = new Promise((resolve) => {
    timer = setTimeout(resolve, maxDrainMs);
  });
  await Promise.race([read().catch(() => {}), timeout]);
  clearTimeout(timer);
}

/** The same for a handler in Rust, which gets the caller as JSON. */
export const withRustHandler = (bindings, next) =>
  withHandler(bindings, (request, caller) => next(request, JSON.stringify(caller)));

/**
 * These bindings for counting objects that are plain classes of Rust. The runtime accepts calls of their method `fetch`
 * only, because they do not extend DurableObject.
 */
export function countingByFetch(bindings) {
  const { ADDRESS_COUNTERS: objects } = bindings;
  if (objects === undefined) return bindings;
  const calling =
    (stub, method) =>
    async (...values) => {
      const response = await stub.fetch(`https://counter/${method}/${values.join("/")}`);
      if (!response.ok) throw new Error(`the counting object answered ${response.status}`);
      return Number(await response.text());
    };
  const getByName = (name, options) => {
    const stub = objects.getByName(name, options);
    return { take: calling(stub, "take"), refund: calling(stub, "refund") };
  };
  return { ...bindings, ADDRESS_COUNTERS: { getByName } };
}
