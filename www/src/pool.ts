/** Does things a few at a time: a browser opens six connections to a server, and others need theirs. */
export class Pool {
  readonly #size: number;

  constructor(size: number) {
    this.#size = size;
  }

  /** Does all, in their order; throws what the first failure throws, and starts nothing more then. */
  async all(things: (() => Promise<void>)[]): Promise<void> {
    let next = 0;
    let failed = false;
    const one = async (): Promise<void> => {
      while (next < things.length && !failed) {
        const thing = things[next++];
        try {
          await thing?.();
        } catch (error) {
          failed = true;
          throw error;
        }
      }
    };
    await Promise.all(Array.from({ length: this.#size }, one));
  }
}

export const pause = (milliseconds: number): Promise<void> => new Promise((done) => setTimeout(done, milliseconds));
