import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Failure } from "../failure.ts";
import { root } from "../paths.ts";

/** Copies deploy/compose.yaml, which must name the files and the image of this version. */
export async function packCompose(version: string, output: string): Promise<void> {
  const compose = await readFile(join(root, "deploy", "compose.yaml"), "utf8");
  const others = compose
    .match(/\bweir(-edge-|:)v\d+\.\d+\.\d+\S*?(?=[.}]|\s)/g)
    ?.filter((name) => !name.endsWith(version));
  if (others?.length !== 0)
    throw new Failure(`deploy/compose.yaml names ${others?.join(", ") ?? "no version"}`, `name ${version} there`);
  await writeFile(join(output, "compose.yaml"), compose);
}
