import { rm } from "node:fs/promises";
import { join, relative } from "node:path";
import { requireCargo } from "./lib/cargo.ts";
import { Failure } from "./lib/failure.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { options } from "./lib/options.ts";
import { logs, makeStateFolder } from "./lib/paths.ts";
import { say, step } from "./lib/progress.ts";
import { temporaryFolder } from "./lib/temporary-folder.ts";

/**
 * `npm run soak -- --minutes 60`: the optimised binary under constant load. Nothing may become slower or larger over
 * time.
 */
await runMain(async () => {
  const { values } = options({ options: { minutes: { type: "string", default: "60" } } });
  const minutes = Number(values.minutes);
  if (!(minutes >= 1)) throw new Failure("--minutes must be a number of at least 1", "npm run soak -- --minutes 60");
  await requireCargo();
  makeStateFolder();
  const folder = temporaryFolder("weir-soak-");
  process.env.WEIR_TEST_FOLDER = folder;
  process.env.WEIR_TEST_BINARY ??= await buildNative("native");
  const { buildFleet } = await import("../tests/chaos/fleet.ts");
  const fleet = await step("building the fleet in Go", () => buildFleet(folder));
  const { soak } = await import("../tests/soak/run.ts");
  const { fails, printed } = await import("../tests/soak/compare.ts");
  const kept = join(logs, "soak");
  await rm(kept, { recursive: true, force: true });
  const { lines, violations, submissions, completed } = await soak(
    { after: onExit },
    { minutes, logs: kept, fleet, report: say },
  );
  console.log(`\n${minutes} min, ${submissions} submissions, ${completed} jobs completed\n\n${printed(lines)}`);
  const beyond = lines.filter(fails);
  if (beyond.length + violations.length === 0) {
    await rm(kept, { recursive: true, force: true });
    return 0;
  }
  if (violations.length > 0) console.log(`\n${violations.join("\n")}`);
  say(`${beyond.length} beyond, ${violations.length} violations; logs: ${relative(process.cwd(), kept)}`);
  return 1;
});
