import { mkdirSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The clone's own folder. */
export const root = resolve(dirname(fileURLToPath(import.meta.url)), "..", "..");

/** The data folder of a development run. With another folder and other ports, a clone can run a second stack. */
export const state = resolve(process.env.WEIR_STATE || join(root, ".weir"));

/** Per user, so that a fresh clone does not build the same tools again. */
export const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "weir");

/** Cargo's intermediate files, of all clones. */
export const buildFolder = join(cache, "build");

export const logs = join(state, "logs");
export const nodeModules = join(root, "node_modules");
export const nodeBin = join(nodeModules, ".bin");

export function makeStateFolder(): void {
  // Other users may enter the folder, but not list it: PostgreSQL does not run as root, and its user must reach its
  // data.
  mkdirSync(state, { recursive: true, mode: 0o711 });
  mkdirSync(logs, { recursive: true });
}
