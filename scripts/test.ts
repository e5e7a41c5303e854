import { randomBytes, randomUUID } from "node:crypto";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { aptInstall, hasSystemd } from "./lib/apt.ts";
import { requireCargo } from "./lib/cargo.ts";
import { runCargoTests, type Totals } from "./lib/cargo-tests.ts";
import { chromium } from "./lib/chromium.ts";
import { buildEdge } from "./lib/edge.ts";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { isExiting, onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { runNodeTests } from "./lib/node-tests.ts";
import { options } from "./lib/options.ts";
import { makeStateFolder } from "./lib/paths.ts";
import { anyFree } from "./lib/ports.ts";
import { startPostgres } from "./lib/postgres.ts";
import { attempt } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";
import { marked, markRun, nameOf } from "./lib/run-file.ts";
import { describeSelection, folderOf, kinds, select } from "./lib/selection.ts";
import { folderInMemory, temporaryFolder } from "./lib/temporary-folder.ts";

await runMain(async () => {
  const { values, positionals } = options({ options: { "no-skips": { type: "boolean" } }, allowPositionals: true });
  await requireCargo();
  const { selection, unmatched } = select(positionals);
  if (unmatched.length > 0)
    throw new Failure(
      `no test or test file has "${unmatched.join('" or "')}" in its name`,
      `name part of a test or file, or a kind (${kinds.join(", ")}), or nothing for all: npm test -- edge whole`,
    );
  for (const line of describeSelection(selection)) say(`runs: ${line}`);
  const uses = (...folders: string[]): boolean =>
    selection.node.some(({ files }) => files.some((file) => folders.includes(folderOf(file) ?? "")));

  // The edge and its rules have no database.
  const isWithoutDatabase = (args: string[]): boolean => args.includes("weir-policy") || args.includes("weir-edge");
  const rustUsesDatabase = !selection.cargo.every(isWithoutDatabase);

  makeStateFolder();
  const id = randomUUID();
  markRun(id);
  const folder = temporaryFolder("weir-test-");
  // Tests stop what they start, unless they are killed.
  onExit(() => {
    for (const pid of marked(id)) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // It has already ended.
      }
    }
  });

  // Files that a failed or killed test leaves in the temporary folder are removed with the run's folder.
  const env: NodeJS.ProcessEnv = { ...process.env, WEIR_TEST_FOLDER: folder, TMPDIR: folder };
  // Before any build, so that a missing browser is reported immediately.
  if (uses("browser")) env.WEIR_TEST_CHROMIUM = await chromium();
  // Without these, their tests are skipped.
  if (rustUsesDatabase && !hasSystemd() && (await attempt("pgbouncer", ["--version"])).code !== 0)
    await aptInstall("installing PgBouncer for its tests by apt", ["pgbouncer"]);
  if (uses("chaos") && !(await import("../tests/chaos/clock.ts")).canShowClocks())
    await aptInstall("installing libfaketime for the tests of clocks by apt", ["libfaketime"]);
  if (uses("scripts", "whole", "browser", "chaos")) env.WEIR_TEST_BINARY = await buildNative();
  if (uses("scripts", "whole", "browser", "edge")) await buildEdge();
  if (rustUsesDatabase || uses("scripts", "whole", "browser"))
    env.WEIR_TEST_DATABASE_URL = await startDatabase(join(folderInMemory("weir-test-postgres-", 4 * 2 ** 30), "data"));

  const totals: Totals = { passed: 0, failed: 0, skipped: 0, failures: [] };
  for (const args of selection.cargo) if (!isExiting()) await runCargoTests(args, env, totals);
  // A separate registry, so that the Workers of a running `npm start` and those of the tests do not find each other.
  const nodeEnv = { ...wranglerEnvironment(env), WRANGLER_REGISTRY_PATH: join(folder, "registry") };
  for (const tests of selection.node) if (!isExiting()) await runNodeTests(tests, nodeEnv, totals);

  // A server that outlives its test is a bug in the test or in the server.
  const others = (): number[] => marked(id).filter((pid) => nameOf(pid) !== "postgres");
  // A server that has just received a signal may need a moment.
  for (let tries = 0; tries < 40 && !isExiting() && others().length > 0; tries++) await sleep(50);
  const left = isExiting() ? [] : others();
  if (left.length > 0) {
    totals.failed++;
    console.log(`\nprocesses that the tests left behind: ${left.map((pid) => `${nameOf(pid)} (${pid})`).join(", ")}`);
  }

  for (const failure of totals.failures) console.log(`\nfailed: ${failure}`);
  console.log(`\n${totals.passed} passed, ${totals.failed} failed, ${totals.skipped} skipped`);
  if (totals.passed + totals.failed + totals.skipped === 0)
    throw new Failure("no test ran", "use a part of a test's name, as the test runner prints it");
  if (values["no-skips"] && totals.skipped > 0)
    throw new Failure("tests were skipped", "install the requirements that they name above");
  return totals.failed > 0 ? 1 : 0;
});

function startDatabase(data: string): Promise<string> {
  return step("starting PostgreSQL for the tests", async () => {
    const server = await startPostgres({
      data,
      port: await anyFree(),
      // Files of a killed run must not be in use.
      tied: true,
      password: randomBytes(16).toString("hex"),
      settings: {
        // The data does not outlive the run, so it need not reach the disk.
        fsync: "off",
        synchronous_commit: "off",
        full_page_writes: "off",
        max_connections: "400",
        max_wal_size: "256MB",
        shared_buffers: "256MB",
        log_min_messages: "fatal",
      },
    });
    return server.url("postgres");
  });
}
