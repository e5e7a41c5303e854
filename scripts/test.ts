import { spawn } from "node:child_process";
import { randomBytes, randomUUID } from "node:crypto";
import { chmodSync, mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { cargoEnvironment } from "./lib/cargo.ts";
import { chromium } from "./lib/chromium.ts";
import { buildEdge } from "./lib/edge.ts";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { isExiting, onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { runNodeTests } from "./lib/node-tests.ts";
import { makeStateFolder, root } from "./lib/paths.ts";
import { anyFree } from "./lib/ports.ts";
import { startPostgres } from "./lib/postgres.ts";
import { stopGroup } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";
import { marked, markRun, nameOf } from "./lib/run-file.ts";
import { sleep } from "./lib/sleep.ts";
import { addCargoLine, Totals } from "./lib/totals.ts";

const kinds = ["unit", "edge", "whole", "browser"];

await runMain(async () => {
  const wanted = process.argv.slice(2);
  const unknown = wanted.find((kind) => !kinds.includes(kind));
  if (unknown)
    throw new Failure(
      `there are no tests called "${unknown}"`,
      `name some of ${kinds.join(", ")}, or nothing for all: npm test -- edge whole`,
    );
  const wants = (...of: string[]): boolean => wanted.length === 0 || of.some((kind) => wanted.includes(kind));

  makeStateFolder();
  const id = randomUUID();
  markRun(id);
  const folder = mkdtempSync(join(tmpdir(), "weir-test-"));
  chmodSync(folder, 0o711);
  onExit(() => rm(folder, { recursive: true, force: true }));
  // Tests end what they start. This is for those that were themselves ended half-way.
  onExit(() => {
    for (const pid of marked(id)) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // It has ended meanwhile.
      }
    }
  });

  const environment: Record<string, string> = { WEIR_TEST_FOLDER: folder };
  if (wants("whole", "browser")) environment.WEIR_TEST_BINARY = await buildNative();
  if (wants("whole", "browser", "edge")) await buildEdge();
  if (wants("browser")) environment.WEIR_TEST_CHROMIUM = await chromium();

  await step("starting a PostgreSQL for the tests", async () => {
    const server = await startPostgres({
      data: join(folder, "postgres"),
      port: await anyFree(),
      password: randomBytes(16).toString("hex"),
      settings: {
        // Nothing in it outlives the run, so nothing needs to reach the disk.
        fsync: "off",
        synchronous_commit: "off",
        full_page_writes: "off",
        max_connections: "400",
        shared_buffers: "256MB",
        log_min_messages: "fatal",
      },
    });
    environment.WEIR_TEST_DATABASE_URL = server.url("postgres");
  });
  Object.assign(process.env, wranglerEnvironment(), environment);

  const totals = new Totals();
  if (wants("unit")) await runCargoTests(totals);
  const folders = kinds.filter((kind) => kind !== "unit" && wants(kind));
  if (folders.length > 0 && !isExiting()) await runNodeTests(folders, totals);

  // A server that outlives its test is a fault, of the test or of the server's way to stop.
  const others = (): number[] => marked(id).filter((pid) => nameOf(pid) !== "postgres");
  // What a test has just told to end may take a moment.
  for (let tries = 0; tries < 40 && !isExiting() && others().length > 0; tries++) await sleep(50);
  const left = isExiting() ? [] : others();
  if (left.length > 0) {
    totals.add(0, 1, 0);
    console.log(`\nprocesses that the tests left behind: ${left.map((pid) => `${nameOf(pid)} (${pid})`).join(", ")}`);
  }

  console.log(`\n${totals}`);
  return totals.failed > 0 ? 1 : 0;
});

async function runCargoTests(totals: Totals): Promise<void> {
  say("running the tests of the Rust crates");
  const child = spawn("cargo", ["test", "--workspace", "--locked", "--no-fail-fast"], {
    cwd: root,
    env: await cargoEnvironment(),
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  onExit(() => stopGroup(child, 2000));
  createInterface({ input: child.stdout }).on("line", (line) => {
    console.log(line);
    addCargoLine(totals, line);
  });
  createInterface({ input: child.stderr }).on("line", (line) => console.error(line));
  const failedBefore = totals.failed;
  const code = await new Promise<number | null>((done) => {
    child.on("error", () => done(127));
    child.on("close", done);
  });
  // A crate that does not compile has no result line, and is a failure all the same.
  if (code !== 0 && totals.failed === failedBefore) totals.add(0, 1, 0);
}
