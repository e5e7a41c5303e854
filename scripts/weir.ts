import { inForeground } from "./lib/foreground.ts";
import { runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { stayQuietFor } from "./lib/progress.ts";

stayQuietFor(1500);

await runMain(async () => {
  const weir = await buildNative();
  return inForeground(weir, process.argv.slice(2), weir);
});
