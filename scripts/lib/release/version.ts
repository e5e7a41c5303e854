import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Failure } from "../failure.ts";
import { root } from "../paths.ts";

/** The version in Cargo.toml, without the `v` of its tag. */
export async function workspaceVersion(): Promise<string> {
  const manifest = await readFile(join(root, "Cargo.toml"), "utf8");
  const version = /^\[workspace\.package\]\nversion = "(.+)"$/m.exec(manifest)?.[1];
  if (!version) throw new Failure("Cargo.toml has no version", "set it at the top of [workspace.package]");
  return version;
}
