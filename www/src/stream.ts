type Handlers = Record<string, (data: never) => void>;

/**
 * Follows server-sent events, and reconnects after an error response too. A browser alone reconnects only when the
 * connection breaks.
 */
export class Stream {
  #source: EventSource | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #wait = 1000;
  readonly #path: string;
  readonly #handlers: Handlers;
  readonly #onState: (up: boolean) => void;

  /** `handlers` maps the name of an event to its handler. */
  constructor(path: string, handlers: Handlers, onState: (up: boolean) => void = () => {}) {
    this.#path = path;
    this.#handlers = handlers;
    this.#onState = onState;
    this.#open();
  }

  #open(): void {
    const source = new EventSource(this.#path);
    this.#source = source;
    for (const [name, handle] of Object.entries(this.#handlers)) {
      source.addEventListener(name, (event) => {
        this.#wait = 1000;
        this.#onState(true);
        handle(JSON.parse((event as MessageEvent<string>).data) as never);
      });
    }
    source.addEventListener("error", () => {
      this.#onState(false);
      if (source.readyState !== EventSource.CLOSED) return;
      this.#retry = setTimeout(() => this.#open(), this.#wait);
      this.#wait = Math.min(this.#wait * 2, 15_000);
    });
  }

  close(): void {
    clearTimeout(this.#retry);
    this.#source?.close();
  }
}
