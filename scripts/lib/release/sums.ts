import { createHash } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

const name = "SHA256SUMS";

/** Writes the checksums of a folder's files into the same folder, in the format of `sha256sum --check`. */
export async function writeSums(folder: string): Promise<void> {
  const sums: string[] = [];
  for (const file of (await readdir(folder)).sort()) {
    if (file === name) continue;
    const hash = createHash("sha256").update(await readFile(join(folder, file)));
    sums.push(`${hash.digest("hex")}  ${file}\n`);
  }
  await writeFile(join(folder, name), sums.join(""));
}
