import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { makeStateFolder, root, state } from "./paths.ts";

/** The services of development: those of weir.toml, and one for the page's picture. Returns the file's path. */
export async function developmentServices(folder = state): Promise<string> {
  const own = await readFile(join(root, "weir.toml"), "utf8");
  const demo = await readFile(join(import.meta.dirname, "demo.toml"), "utf8");
  makeStateFolder();
  const path = join(folder, "services.toml");
  // Somebody may call a service of their own the same.
  await writeFile(path, /^name = "demo"$/m.test(own) ? own : own + demo);
  return path;
}
