import { availableParallelism, loadavg } from "node:os";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { Failure } from "./lib/failure.ts";
import { isExiting, onExit, runMain } from "./lib/lifecycle.ts";
import { options } from "./lib/options.ts";
import { makeStateFolder, root } from "./lib/paths.ts";
import { attempt } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";

/**
 * `npm run busy -- --times 10 [NAME...]`: repeats `npm test` while every core is under load. Tests that depend on an
 * idle machine fail here first.
 */
await runMain(async () => {
  const { values, positionals } = options({
    options: { times: { type: "string", default: "10" } },
    allowPositionals: true,
  });
  const times = Number(values.times);
  if (!Number.isSafeInteger(times) || times < 1)
    throw new Failure("--times must be a number of at least 1", "npm run busy -- --times 10");
  makeStateFolder();
  const cores = availableParallelism();
  for (let core = 0; core < cores; core++) {
    const loop = new Worker("for (;;);", { eval: true });
    onExit(async () => {
      await loop.terminate();
    });
  }
  say(`${times} runs, while ${cores} loops keep ${cores} cores busy`);
  let passed = 0;
  for (let time = 1; time <= times && !isExiting(); time++) {
    const log = `busy-${time}`;
    const { code, output } = await step(`run ${time} of ${times}`, (pulse) =>
      attempt(process.execPath, [join(root, "scripts", "test.ts"), ...positionals], { log, pulse, grace: 30_000 }),
    );
    const last = output.trimEnd().split("\n").at(-1);
    say(`run ${time}: ${last}, load ${loadavg()[0]?.toFixed(1)}`);
    if (code === 0) passed++;
    else say(`  its output is in .weir/logs/${log}.log`);
  }
  say(`${passed} of ${times} passed`);
  return passed === times ? 0 : 1;
});
