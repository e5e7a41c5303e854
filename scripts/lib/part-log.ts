import { createWriteStream, mkdirSync } from "node:fs";
import { basename, join, relative } from "node:path";
import { Failure } from "./failure.ts";
import { logs } from "./paths.ts";
import { say, show } from "./progress.ts";

/** A log under .weir/logs. If it cannot be written (a full disk), it ends, and its source continues. */
export function openLog(name: string): NodeJS.WritableStream & { path: string } {
  mkdirSync(logs, { recursive: true });
  const path = join(logs, `${name}.log`);
  const out = createWriteStream(path);
  out.on("error", (error) => say(`${basename(path)} cannot be written (${error.message}), so it ends here`));
  return Object.assign(out, { path });
}

const shown = 20;

/** The output of one part of the stack: all of it in a file, and on the terminal if the user wants it. */
export class PartLog {
  readonly name: string;
  readonly #out: ReturnType<typeof openLog>;
  readonly #recent: string[] = [];
  readonly #isShown: (line: string) => boolean;

  constructor(name: string, isShown: (line: string) => boolean) {
    this.name = name;
    this.#out = openLog(name);
    this.#isShown = isShown;
  }

  take = (line: string): void => {
    this.#out.write(`${line}\n`);
    if (this.#isShown(line)) show(`[${this.name}] ${line}`);
    else if (this.#recent.push(line) > shown) this.#recent.shift();
  };

  /** A failure with the advice to read the last lines, which are on the terminal then. */
  failure(what: string): Failure {
    for (const line of this.#recent) show(`[${this.name}] ${line}`);
    const file = relative(process.cwd(), this.#out.path);
    return new Failure(
      what,
      `correct the errors in its last lines above (they start with [${this.name}]; all of them: ${file}), then npm start`,
    );
  }
}
