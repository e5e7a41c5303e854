import { cargoEnvironment } from "./cargo.ts";
import { Failure } from "./failure.ts";
import { type RunOptions, run } from "./process.ts";

/** What cargo says about each thing that it has made or found made, a line each. */
interface Message {
  reason?: string;
  target?: { name?: string };
  executable?: string | null;
  filenames?: string[];
}

/** Builds with cargo in its environment, with more on top of it, and returns what cargo says about what it has made. */
export async function cargoBuild(flags: string[], options: RunOptions): Promise<string> {
  return run("cargo", ["build", ...flags, "--locked", "--message-format=json-render-diagnostics"], {
    remedy: "correct what the compiler reports above",
    ...options,
    env: await cargoEnvironment(options.env),
  });
}

/** The program that a build of cargo says it has made. */
export function executableIn(messages: string, name = "weir"): string {
  const found = artifactsIn(messages, name).find(({ executable }) => executable);
  return found?.executable ?? missing(`program called ${name}`);
}

/** The file with this ending of a library that a build of cargo says it has made. */
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
