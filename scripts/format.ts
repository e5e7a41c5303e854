import { join } from "node:path";
import { requireCargo } from "./lib/cargo.ts";
import { runMain } from "./lib/lifecycle.ts";
import { nodeBin } from "./lib/paths.ts";
import { run } from "./lib/process.ts";

await runMain(async () => {
  await requireCargo();
  await run("cargo", ["fmt", "--all"]);
  // Fails if it cannot fix everything. `npm run lint` reports the rest.
  await run(join(nodeBin, "biome"), ["check", "--write", "--log-level=error", "."]).catch(() => {});
});
