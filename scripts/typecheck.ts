import { join } from "node:path";
import { nodeBin } from "./lib/places.ts";
import { run } from "./lib/process.ts";
import { say } from "./lib/progress.ts";
import { script } from "./lib/stopping.ts";

await script(async () => {
  for (const project of ["tsconfig.json", join("www", "tsconfig.json")]) {
    await run(join(nodeBin, "tsc"), ["--noEmit", "--project", project], { remedy: "mend the types that tsc names above" });
  }
  say("the types hold");
});
