import { buildEdge } from "./lib/edge.ts";
import { runMain } from "./lib/lifecycle.ts";
import { stayQuietFor } from "./lib/progress.ts";

stayQuietFor(1000);
await runMain(() => buildEdge());
