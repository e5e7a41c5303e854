/** Runs a few tasks at a time: a browser opens six connections to a server, and other requests need theirs. */
export class Pool {
  readonly #size: number;

  constructor(size: number) {
    this.#size = size;
  }

  /** Runs all tasks in order. After a failure, it throws that error and starts no further task. */
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
