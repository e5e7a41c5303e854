import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { root } from "./lib/paths.ts";

Object.assign(process.env, wranglerEnvironment());
// It reads the command line itself. Its own tsconfig.json checks its types, since it has packages of its own.
await import(pathToFileURL(join(root, "bench", "edge", "run.ts")).href);
