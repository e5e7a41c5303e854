import { Failure } from "./failure.ts";

/** What cargo says about each thing that it has made or found made, a line each. */
interface Message {
  reason?: string;
  target?: { name?: string };
  executable?: string | null;
  filenames?: string[];
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
