import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { root } from "./lib/paths.ts";

Object.assign(process.env, wranglerEnvironment());
// It reads the command line. Its tsconfig.json checks its types, because it has separate packages.
await import(pathToFileURL(join(root, "bench", "edge", "run.ts")).href);
