import { inForeground } from "./lib/foreground.ts";
import { runMain } from "./lib/lifecycle.ts";
import { buildBench } from "./lib/native.ts";
import { stayQuietFor } from "./lib/progress.ts";
import { pythonWith } from "./lib/python.ts";

stayQuietFor(1500);

await runMain(async () => {
  const { bench, weir } = await buildBench();
  if (process.argv.includes("languages")) {
    process.env.WEIR_BENCH_PYTHON = await pythonWith("psycopg[binary]", "3.3.9", "psycopg");
    process.env.WEIR_BENCH_NODE = process.execPath;
  }
  return inForeground(bench, ["--weir", weir, ...process.argv.slice(2)], weir);
});
