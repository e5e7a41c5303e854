import { cp, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { buildWeir } from "../native.ts";
import { root } from "../paths.ts";
import { run } from "../process.ts";
import { archive } from "./archive.ts";

export const targets = ["gnu", "musl"].flatMap((libc) => [
  `x86_64-unknown-linux-${libc}`,
  `aarch64-unknown-linux-${libc}`,
]);

/** The name of an archive of the binary, without its ending. */
export function archiveOf(version: string, target: string): string {
  return `weir-${version}-${target}`;
}

/** Builds the binary for a target, and packs it with the files that its operator needs. */
export async function packBinary(version: string, target: string, output: string): Promise<void> {
  const weir = await buildWeir(target);
  const folder = join(output, archiveOf(version, target));
  await mkdir(folder, { recursive: true });
  await cp(weir, join(folder, "weir"));
  for (const name of ["deploy", "docs/operations.md", "LICENSE-APACHE", "LICENSE-MIT"])
    await cp(join(root, name), join(folder, name), { recursive: true });
  await writeManuals(weir, folder);
  await archive(folder);
}

/**
 * In the folders of `man` and the shells below /usr/local/share. The binary writes these files itself, so it must run
 * on this machine.
 */
async function writeManuals(weir: string, folder: string): Promise<void> {
  await run(weir, ["manual", "--to", join(folder, "man", "man1")]);
  const completions = join(folder, "completions");
  await mkdir(completions, { recursive: true });
  for (const [shell, name] of [
    ["bash", "weir.bash"],
    ["zsh", "_weir"],
    ["fish", "weir.fish"],
    ["powershell", "weir.ps1"],
  ] as const)
    await writeFile(join(completions, name), await run(weir, ["completions", shell]));
}
