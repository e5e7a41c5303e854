import { cargoEnvironment } from "./cargo.ts";
import { Failure } from "./failure.ts";
import { type RunOptions, run } from "./process.ts";

/** One line of cargo's output about an artifact, new or cached. */
interface Message {
  reason?: string;
  target?: { name?: string };
  executable?: string | null;
  filenames?: string[];
}

/** Builds with cargo in its environment plus `options.env`, and returns cargo's messages about the artifacts. */
export async function cargoBuild(flags: string[], options: RunOptions): Promise<string> {
  return run("cargo", ["build", ...flags, "--locked", "--message-format=json-render-diagnostics"], {
    remedy: "correct what the compiler reports above",
    ...options,
    env: cargoEnvironment({
      ...(options.pulse && { CARGO_TERM_PROGRESS_WHEN: "always", CARGO_TERM_PROGRESS_WIDTH: "100" }),
      ...options.env,
    }),
  });
}

/** The program's path, from cargo's messages. */
export function executableIn(messages: string, name = "weir"): string {
  const found = artifactsIn(messages, name).find(({ executable }) => executable);
  return found?.executable ?? missing(`program called ${name}`);
}

/** The path of a library's file with this ending, from cargo's messages. */
export function libraryIn(messages: string, name: string, ending: string): string {
  const files = artifactsIn(messages, name).flatMap(({ filenames }) => filenames ?? []);
  return files.find((file) => file.endsWith(ending)) ?? missing(`${ending} of ${name}`);
}

function artifactsIn(messages: string, name: string): Message[] {
  return messages
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as Message)
    .filter(({ reason, target }) => reason === "compiler-artifact" && target?.name === name);
}

function missing(what: string): never {
  throw new Failure(`cargo built no ${what}`, "check the names in the Cargo.toml files");
}
