import { existsSync } from "node:fs";
import { join } from "node:path";
import { requireFreshApiTypes } from "./lib/api-types.ts";
import { runMain } from "./lib/lifecycle.ts";
import { nodeBin, root } from "./lib/paths.ts";
import { run } from "./lib/process.ts";
import { say } from "./lib/progress.ts";

await runMain(async () => {
  await requireFreshApiTypes();
  const projects = ["tsconfig.json", join("www", "tsconfig.json")];
  // The benchmark installs its packages on its first run.
  if (existsSync(join(root, "bench", "edge", "node_modules"))) projects.push(join("bench", "edge", "tsconfig.json"));
  for (const project of projects) {
    await run(join(nodeBin, "tsc"), ["--noEmit", "--project", project], {
      remedy: "correct the types that tsc reports above",
    });
  }
  say("the types hold");
});
