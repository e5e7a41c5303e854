import { rm } from "node:fs/promises";
import { basename, dirname } from "node:path";
import { run } from "../process.ts";

/** Replaces a folder with an archive of it. The same content produces the same archive. */
export async function archive(folder: string): Promise<void> {
  const same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"];
  await run("tar", [...same, "-czf", `${folder}.tar.gz`, "-C", dirname(folder), basename(folder)]);
  await rm(folder, { recursive: true });
}
