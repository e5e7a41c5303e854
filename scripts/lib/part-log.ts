import { relative } from "node:path";
import { Failure } from "./failure.ts";
import { logPath, openLog } from "./log-file.ts";
import { show } from "./progress.ts";

/** The output of one part of the stack: all of it in a file, and on the terminal if the user wants it. */
export interface PartLog {
  name: string;
  file: string;
  /** Adds a line. */
  take(line: string): void;
  /** Prints the last lines, unless they are on the terminal already. */
  showEnd(): void;
  /** A failure with the advice to read the end of the log. */
  failure(what: string): Failure;
}

const shown = 20;

export function partLog(name: string, options: { verbose: boolean; notable?: RegExp }): PartLog {
  const file = relative(process.cwd(), logPath(name));
  const out = openLog(name);
  const recent: string[] = [];
  const print = (line: string): void => show(`[${name}] ${line}`);
  const showEnd = (): void => {
    if (!options.verbose) for (const line of recent) print(line);
  };
  return {
    name,
    file,
    take(line) {
      out.write(`${line}\n`);
      recent.push(line);
      if (recent.length > shown) recent.shift();
      if (options.verbose || options.notable?.test(line)) print(line);
    },
    showEnd,
    failure(what) {
      showEnd();
      return new Failure(
        what,
        `correct the errors in its last lines above (they start with [${name}]; all of them: ${file}), then npm start`,
      );
    },
  };
}
