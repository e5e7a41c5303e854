import { buildEdge } from "./lib/edge.ts";
import { stayQuietFor } from "./lib/progress.ts";
import { script } from "./lib/stopping.ts";

stayQuietFor(1000);
await script(buildEdge);
