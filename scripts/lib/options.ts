import { type ParseArgsConfig, parseArgs } from "node:util";
import { Failure } from "./failure.ts";

/** Parses the options and arguments of the command line. An unknown option is a failure that names the known ones. */
export function options<T extends ParseArgsConfig>(config: T): ReturnType<typeof parseArgs<T>> {
  try {
    return parseArgs(config);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (!code?.startsWith("ERR_PARSE_ARGS_")) throw error;
    // The text after the first sentence is about Node's way to end the options.
    const what = message.split(/\.\s/)[0] ?? message;
    const known = Object.entries(config.options ?? {}).map(([name, { type }]) =>
      type === "string" ? `--${name} VALUE` : `--${name}`,
    );
    const words = config.allowPositionals ? ["names without dashes"] : [];
    throw new Failure(what.charAt(0).toLowerCase() + what.slice(1), `there are ${[...known, ...words].join(", ")}`);
  }
}
