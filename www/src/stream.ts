/**
 * Follows server-sent events, also past a server that answers with an error: a browser goes on by itself only when
 * the connection breaks.
 */
export class Stream<T> {
  #source: EventSource | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #wait = 1000;
  readonly #path: string;
  readonly #name: string;
  readonly #onEvent: (data: T) => void;
  readonly #onState: (up: boolean) => void;

  constructor(path: string, name: string, onEvent: (data: T) => void, onState: (up: boolean) => void = () => {}) {
    this.#path = path;
    this.#name = name;
    this.#onEvent = onEvent;
    this.#onState = onState;
    this.#open();
  }

  #open(): void {
    const source = new EventSource(this.#path);
    this.#source = source;
    source.addEventListener(this.#name, (event) => {
      this.#wait = 1000;
      this.#onState(true);
      this.#onEvent(JSON.parse((event as MessageEvent<string>).data) as T);
    });
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
