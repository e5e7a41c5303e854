import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { root } from "./lib/paths.ts";

Object.assign(process.env, wranglerEnvironment());
// Reads its flags from the command line and runs to its own end. Its types are checked by its own tsconfig.json,
// since it has packages of its own.
await import(pathToFileURL(join(root, "bench", "edge", "run.ts")).href);
