import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { makeStateFolder, root, state } from "./paths.ts";
import { attempt } from "./process.ts";

const shipped = join(root, "weir.toml");

/** The services of weir.toml, and one for the page's demonstration. Returns the file's path. */
export async function servicesWithDemo(folder = state, file = shipped): Promise<string> {
  const own = await readFile(file, "utf8");
  const demo = await readFile(join(import.meta.dirname, "demo.toml"), "utf8");
  makeStateFolder();
  const path = join(folder, "services.toml");
  // The user's file may already have a service of this name.
  // Renamed when it is complete, because another process may be reading it.
  const part = `${path}.${process.pid}`;
  await writeFile(part, /^name = "demo"$/m.test(own) ? own : own + demo);
  await rename(part, path);
  return path;
}

/**
 * The services of development: weir.toml with the demonstration. If that combination has an error, only weir.toml: then
 * its errors name that file, and a catalogue without the demonstration's meter is not an error.
 */
export async function developmentServices(
  weir: string,
  env: NodeJS.ProcessEnv,
  folder = state,
  file = shipped,
): Promise<string> {
  const both = await servicesWithDemo(folder, file);
  const { code } = await attempt(weir, ["check"], { env: { ...env, WEIR_CONFIG: both } });
  return code === 0 ? both : file;
}
