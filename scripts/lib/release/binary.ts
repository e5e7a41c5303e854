import { cp, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { buildNative } from "../native.ts";
import { root } from "../paths.ts";
import { archive } from "./archive.ts";

export const targets = ["gnu", "musl"].flatMap((libc) => [
  `x86_64-unknown-linux-${libc}`,
  `aarch64-unknown-linux-${libc}`,
]);

/** The name of an archive of the binary, without its ending. */
export function archiveOf(version: string, target: string): string {
  return `weir-${version}-${target}`;
}

/** Builds the binary for a target, and packs it with what its operator needs. */
export async function packBinary(version: string, target: string, output: string): Promise<void> {
  const weir = await buildNative("native", target);
  const folder = join(output, archiveOf(version, target));
  await mkdir(folder, { recursive: true });
  await cp(weir, join(folder, "weir"));
  for (const name of ["weir.toml", "deploy", "docs/operations.md", "LICENSE-APACHE", "LICENSE-MIT"])
    await cp(join(root, name), join(folder, name), { recursive: true });
  await archive(folder);
}
