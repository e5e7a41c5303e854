import { randomInt } from "node:crypto";
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
 * `npm run chaos -- --minutes 10 --seed 7`: the same seed gives the same plan of faults. Clocks jump, unless
 * `--no-clocks` is set or the machine does not support it. The default seed is random.
 */
await runMain(async () => {
  const { values } = options({
    options: {
      minutes: { type: "string", default: "10" },
      seed: { type: "string" },
      "no-clocks": { type: "boolean", default: false },
    },
  });
  const minutes = Number(values.minutes);
  const seed = values.seed === undefined ? randomInt(2 ** 31) : Number(values.seed);
  if (!(minutes > 0) || !Number.isSafeInteger(seed))
    throw new Failure("--minutes and --seed must be numbers", "npm run chaos -- --minutes 10 --seed 7");
  await requireCargo();
  makeStateFolder();
  const folder = temporaryFolder("weir-chaos-");
  process.env.WEIR_TEST_FOLDER = folder;
  process.env.WEIR_TEST_BINARY ??= await buildNative();
  const { buildFleet } = await import("../tests/chaos/fleet.ts");
  const fleet = await step("building the fleet in Go", () => buildFleet(folder));
  if (!fleet) say("without a fleet in Go, which is not installed or cannot be built: its jobs are not submitted");
  const { canShowClocks } = await import("../tests/chaos/clock.ts");
  const clocks = canShowClocks() && !values["no-clocks"];
  if (!canShowClocks())
    say("without clocks that jump: libfaketime is not installed (Debian: apt-get install libfaketime)");
  const { chaos } = await import("../tests/chaos/run.ts");
  const { report, violations } = await import("../tests/chaos/report.ts");
  const kept = join(logs, `chaos-${seed}`);
  await rm(kept, { recursive: true, force: true });
  say(`seed ${seed}, ${minutes} min`);
  const result = await chaos({ after: onExit }, { seed, minutes, logs: kept, fleet, clocks, report: say });
  console.log(`\nseed ${seed}\n${report(result)}`);
  const found = violations(result);
  if (found.length === 0) {
    await rm(kept, { recursive: true, force: true });
    return 0;
  }
  console.log(`\n${found.join("\n")}\n`);
  say(`seed ${seed} has ${found.length} violations; logs: ${relative(process.cwd(), kept)}`);
  say(`again: npm run chaos -- --minutes ${minutes} --seed ${seed}${clocks ? "" : " --no-clocks"}`);
  return 1;
});
