import { buildEdge } from "./lib/edge.ts";
import { stayQuietFor } from "./lib/progress.ts";
import { runMain } from "./lib/lifecycle.ts";

stayQuietFor(1000);
await runMain(buildEdge);
