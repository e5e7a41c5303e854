import { createWriteStream, mkdirSync } from "node:fs";
import { basename, join } from "node:path";
import { logs } from "./paths.ts";
import { say } from "./progress.ts";

export function logPath(name: string): string {
  return join(logs, `${name}.log`);
}

/** A log under .weir/logs. If it cannot be written (a full disk), it ends, and its source continues. */
export function openLog(name: string): NodeJS.WritableStream {
  mkdirSync(logs, { recursive: true });
  const path = logPath(name);
  const out = createWriteStream(path);
  out.on("error", (error) => say(`${basename(path)} cannot be written (${error.message}), so it ends here`));
  return out;
}
