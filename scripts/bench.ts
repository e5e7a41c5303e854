import { inForeground } from "./lib/foreground.ts";
import { runMain } from "./lib/lifecycle.ts";
import { buildBench } from "./lib/native.ts";
import { stayQuietFor } from "./lib/progress.ts";

stayQuietFor(1500);

await runMain(async () => {
  const { bench, weir } = await buildBench();
  return inForeground(bench, ["--weir", weir, ...process.argv.slice(2)], weir);
});
