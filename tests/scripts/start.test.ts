import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { constants, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { root } from "../../scripts/lib/paths.ts";
import { isFree } from "../../scripts/lib/ports.ts";
import { isAlive } from "../../scripts/lib/process.ts";
import type { Run } from "../../scripts/lib/run-file.ts";
import { marked, nameOf } from "../../scripts/lib/run-file.ts";
import { freshDatabase } from "../harness/database.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { showOnFailure } from "../harness/logs.ts";
import { freePort } from "../harness/ports.ts";
import { canFreeze, descendants, freeze } from "../harness/processes.ts";
import { until } from "../harness/until.ts";

/** The lifetime of the resources that all tests of this file share. */
const file = { after };
whenOver(file, () => {});

// A second stack of this clone, with separate data and ports. `npm test` has built its programs.
const state = mkdtempSync(join(required("WEIR_TEST_FOLDER"), "state-"));
const ports = { WEIR_EDGE_PORT: await freePort(), WEIR_ORIGIN_PORT: await freePort(), WEIR_PG_PORT: await freePort() };
const url = `http://127.0.0.1:${ports.WEIR_EDGE_PORT}`;

interface Command {
  child: ChildProcess;
  output(): string;
  /** Waits until it exits, and returns its exit code. */
  ends(within?: number): Promise<number | null>;
  /** Waits until it has printed this. */
  prints(text: string | RegExp, within?: number): Promise<void>;
}

/** A Node outside the clone, as a machine has it before the first start. */
const machinesNode = join(mkdtempSync(join(required("WEIR_TEST_FOLDER"), "node-")), "node");
copyFileSync(process.execPath, machinesNode, constants.COPYFILE_FICLONE);

/**
 * The processes of the first `npm start`: npm's shell, the machine's Node, the clone's Node. The child is the shell.
 */
function firstStart(folder = root, env: Record<string, string> = {}): ChildProcess {
  const { DATABASE_URL: _, ...inherited } = process.env;
  const numbers = Object.fromEntries(Object.entries(ports).map(([name, port]) => [name, String(port)]));
  return spawn("sh", ["-c", `"${machinesNode}" scripts/bootstrap.mjs start; exit $?`], {
    cwd: folder,
    env: { ...inherited, WEIR_STATE: state, ...numbers, ...env },
    stdio: ["ignore", "pipe", "pipe"],
    // A separate process group, as in a terminal.
    detached: true,
  });
}

function printed(child: ChildProcess, text: string): Promise<void> {
  let output = "";
  return new Promise((done, fail) => {
    for (const stream of [child.stdout, child.stderr])
      stream?.on("data", (data) => {
        output += String(data);
        if (output.includes(text)) done();
      });
    child.on("close", () => fail(new Error(`it has not printed ${text}:\n${output}`)));
  });
}

function npm(script: string, args: string[] = [], env: Record<string, string> = {}): Command {
  const { DATABASE_URL: _, ...inherited } = process.env;
  const numbers = Object.fromEntries(Object.entries(ports).map(([name, port]) => [name, String(port)]));
  const child = spawn(process.execPath, [join(root, "scripts", "bootstrap.mjs"), script, ...args], {
    cwd: root,
    env: { ...inherited, WEIR_STATE: state, ...numbers, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (text += String(data)));
  const ended = new Promise<number | null>((done) => child.on("close", done));
  whenOver(file, async () => {
    child.kill("SIGTERM");
    await ended;
  });
  const prints = async (wanted: string | RegExp, within = 60_000): Promise<void> => {
    for (const deadline = Date.now() + within; text.search(wanted) < 0; await sleep(50)) {
      assert.ok(child.exitCode === null, `npm run ${script} ended with ${child.exitCode}:\n${text}`);
      assert.ok(Date.now() < deadline, `npm run ${script} has not printed ${wanted}:\n${text}`);
    }
  };
  showOnFailure(`npm run ${script}`, () => text);
  const ends = async (within = 60_000): Promise<number | null> => {
    const timer = setTimeout(() => child.kill("SIGKILL"), within);
    return ended.finally(() => clearTimeout(timer));
  };
  return { child, output: () => text, ends, prints };
}

function runFile(): Run {
  return JSON.parse(readFileSync(join(state, "run.json"), "utf8")) as Run;
}

function logOf(part: string): string {
  return readFileSync(join(state, "logs", `${part}.log`), "utf8");
}

async function answersAgain(within: number): Promise<void> {
  for (const deadline = Date.now() + within; ; await sleep(100)) {
    const status = await fetch(`${url}/api/usage`).then(
      (response) => response.status,
      () => undefined,
    );
    if (status === 200) return;
    assert.ok(Date.now() < deadline, `the API answers ${status}`);
  }
}

/** Kills the stack while a program runs a job of this user. Returns the run and the program's processes. */
async function killWithAProgram(stack: Command, ofUser: Record<string, string>): Promise<[Run, number[]]> {
  const run = runFile();
  const accepted = await fetch(`${url}/api/jobs/slow`, { method: "POST", body: "{}", headers: ofUser });
  assert.equal(accepted.status, 202, await accepted.text());
  const origin = marked(run.id).find((pid) => nameOf(pid) === "weir") ?? 0;
  const programs = await until("the job's program", () => {
    const found = descendants(origin);
    return found.some((pid) => nameOf(pid) === "sleep") && found;
  });
  process.kill(run.pid, "SIGKILL");
  await stack.ends();
  assert.ok(marked(run.id).length > 2, "it has left servers behind");
  whenOver(file, () =>
    [...marked(run.id), ...programs.filter(isAlive)].forEach((pid) => void process.kill(pid, "SIGKILL")),
  );
  return [run, programs];
}

async function nothingListens(): Promise<void> {
  for (const [name, port] of Object.entries(ports)) assert.ok(await isFree(port), `${name} is still in use`);
}

describe("npm start", { timeout: 1_200_000 }, () => {
  let stack: Command;
  let ofUser: Record<string, string> = {};

  it("starts everything and prints its address once requests pass", async () => {
    stack = npm("start", [], { WEIR_CONFIG: join(root, "native", "tests", "programs.toml") });
    // The binary is built first, unless another test has built it.
    await stack.prints(`weir: ready ${url}`, 600_000);
    const usage = await fetch(`${url}/api/usage`);
    assert.equal(usage.status, 200);
    assert.match(await (await fetch(url)).text(), /<html/i);
  });

  it("prints its own lines; the parts' lines are in their logs", () => {
    const lines = stack.output().trim().split("\n");
    assert.deepEqual(
      lines.filter((line) => !line.startsWith("weir: ")),
      [],
    );
    assert.equal(lines.filter((line) => line.startsWith("weir: starting PostgreSQL")).length, 1);
    for (const part of ["postgres", "origin", "edge"]) assert.notEqual(logOf(part), "", part);
  });

  it("refuses to start twice, and prints how to stop the first", async () => {
    const second = npm("start");
    assert.equal(await second.ends(), 1);
    assert.match(second.output(), new RegExp(`already running: ${url}`));
    assert.match(second.output().trimEnd().split("\n").at(-1) ?? "", new RegExp(`^weir: fix: .*kill ${runFile().pid}`));
  });

  it("is used by npm run weir", async () => {
    const token = npm("weir", ["token", "--plan", "pro"]);
    assert.equal(await token.ends(), 0, token.output());
    ofUser = { Authorization: `Bearer ${token.output().trim().split("\n").at(-1)}` };
    const usage = (await (await fetch(`${url}/api/usage`, { headers: ofUser })).json()) as { plan: string };
    assert.equal(usage.plan, "pro");
  });

  it("shares its services file with npm run weir", async () => {
    const status = npm("weir", ["status"]);
    assert.equal(await status.ends(), 0, status.output());
    assert.match(status.output(), /\bflaky \(\d+ workers\)/);
    const own = npm("weir", ["status"], { WEIR_CONFIG: join(state, "no.toml") });
    assert.equal(await own.ends(), 2, own.output());
    assert.match(own.output(), /cannot read .*no\.toml/, "without the stack's services");
  });

  it("lets npm run weir end when its program ends", { skip: !canFreeze && "needs Linux" }, async () => {
    const worker = npm("weir", ["work"]);
    await worker.prints('"message":');
    const program = descendants(worker.child.pid ?? 0).find((pid) => nameOf(pid) === "weir") ?? 0;
    const thaw = freeze(program);
    try {
      worker.child.kill("SIGTERM");
      await sleep(1500);
      assert.equal(worker.child.exitCode, null, "it has left its program behind");
    } finally {
      thaw();
    }
    assert.equal(await worker.ends(), 143, worker.output());
    assert.match(worker.output(), /"message":"stopping"/);
    assert.equal(isAlive(program), false);
  });

  it("restarts an origin that exits after losing the database", { skip: !canFreeze && "needs Linux" }, async () => {
    const thaw = freeze(Number(readFileSync(join(state, "postgres", "postmaster.pid"), "utf8").split("\n")[0]));
    try {
      await stack.prints(/origin ended with code 70: .*restarting/, 30_000);
    } finally {
      thaw();
    }
    await answersAgain(30_000);
    await stack.prints("the origin is back");
  });

  it("ends a killed run's processes and uses DATABASE_URL's server", {
    skip: !canFreeze && "needs Linux",
  }, async (t) => {
    const [killed, programs] = await killWithAProgram(stack, ofUser);
    const database = await freshDatabase(t);
    stack = npm("start", ["--verbose"], { DATABASE_URL: database.url });
    await stack.prints("that a killed run left behind");
    await stack.prints(`weir: ready ${url}`);
    assert.match(stack.output(), /^\[origin\] \{/m, "--verbose shows what the parts say");
    assert.deepEqual(marked(killed.id), []);
    await until("the job's program to end", async () => !programs.some(isAlive));
    assert.ok(await isFree(ports.WEIR_PG_PORT), "it has started a PostgreSQL all the same");
    const [{ jobs }] = (await database.sql`SELECT to_regclass('river_job') IS NOT NULL AS jobs`) as unknown as [
      { jobs: boolean },
    ];
    assert.ok(jobs, "it has migrated the given database");

    const { id } = runFile();
    assert.ok(marked(id).length > 1);
    stack.child.kill("SIGTERM");
    assert.equal(await stack.ends(), 143);
    assert.match(stack.output(), /weir: stopped/);
    assert.deepEqual(marked(id), [], "it has left processes behind");
  });

  // There, the worker would wait for its job, and nothing else would end it.
  it("ends the programs of a killed run while its server keeps running", {
    skip: !canFreeze && "needs Linux",
  }, async (t) => {
    const { url: DATABASE_URL } = await freshDatabase(t);
    const env = { DATABASE_URL, WEIR_CONFIG: join(root, "native", "tests", "programs.toml") };
    stack = npm("start", [], env);
    await stack.prints(`weir: ready ${url}`);
    const [killed, programs] = await killWithAProgram(stack, ofUser);
    stack = npm("start", [], env);
    await stack.prints("that a killed run left behind");
    await stack.prints(`weir: ready ${url}`);
    assert.deepEqual(marked(killed.id), []);
    await until("the job's program to end", async () => !programs.some(isAlive));
    stack.child.kill("SIGTERM");
    assert.equal(await stack.ends(), 143);
  });

  it("prints the last lines of a failed part, and a fix", {
    skip: !canFreeze && "needs Linux",
  }, async () => {
    stack = npm("start");
    await stack.prints(`weir: ready ${url}`);
    const edge = marked(runFile().id).find((pid) =>
      /wrangler\.js\0dev/.test(readFileSync(`/proc/${pid}/cmdline`, "utf8")),
    );
    process.kill(edge ?? 0, "SIGKILL");
    assert.equal(await stack.ends(), 1);
    assert.match(stack.output(), /^\[edge\] .*Ready on/m);
    assert.match(stack.output(), /^weir: edge was ended by SIGKILL, so the stack stops$/m);
    assert.match(stack.output().trimEnd().split("\n").at(-1) ?? "", /^weir: fix: .*edge\.log/);
  });

  for (const [signal, to] of [
    ["SIGTERM", "its shell alone"],
    ["SIGHUP", "its shell alone"],
    ["SIGINT", "its group"],
    ["SIGTERM", "its group"],
  ] as const)
    it(`stops everything on ${signal} to ${to} in the first start`, async () => {
      const shell = firstStart();
      await printed(shell, `weir: ready ${url}`);
      const { id } = runFile();
      assert.ok(marked(id).length > 1);
      process.kill(to === "its group" ? -(shell.pid ?? 0) : (shell.pid ?? 0), signal);
      await until("everything to be stopped", async () => marked(id).length === 0);
      await nothingListens();
    });

  it("stops the installation when its shell is stopped", { skip: !canFreeze && "needs Linux" }, async () => {
    const folder = mkdtempSync(join(required("WEIR_TEST_FOLDER"), "clone-"));
    mkdirSync(join(folder, "scripts"));
    for (const name of ["package.json", "package-lock.json", "scripts/bootstrap.mjs", "scripts/start.ts"])
      copyFileSync(join(root, name), join(folder, name));
    const shell = firstStart(folder);
    await printed(shell, "installing the npm packages");
    await until("npm to run", async () => descendants(shell.pid ?? 0).length > 1);
    const started = descendants(shell.pid ?? 0);
    process.kill(shell.pid ?? 0, "SIGTERM");
    await until("the installation to be stopped", async () => !started.some(isAlive));
  });

  for (const [signal, to] of [
    ["SIGTERM", "its shell alone"],
    ["SIGINT", "its group"],
  ] as const)
    it(`stops the build on ${signal} to ${to}`, { skip: !canFreeze && "needs Linux" }, async () => {
      const folder = mkdtempSync(join(required("WEIR_TEST_FOLDER"), "target-"));
      const compiler = join(folder, "rustc");
      // Cargo queries the compiler first. Then each crate takes ten minutes.
      writeFileSync(compiler, '#!/bin/sh\ncase "$*" in *-vV* | *--print*) exec "$@" ;; esac\nsleep 600\n', {
        mode: 0o755,
      });
      const shell = firstStart(root, { CARGO_TARGET_DIR: folder, RUSTC_WRAPPER: compiler });
      const builds = (pid: number): boolean => nameOf(pid) === "sleep";
      const started = await until("the compiler to run", async () => {
        const found = descendants(shell.pid ?? 0);
        return found.some(builds) && found;
      });
      process.kill(to === "its group" ? -(shell.pid ?? 0) : (shell.pid ?? 0), signal);
      await until("the build to be stopped", async () => !started.some(isAlive));
      await nothingListens();
    });

  it("does not leave an open port or a record", async () => {
    await nothingListens();
    assert.ok(!existsSync(join(state, "run.json")));
  });

  it("fails when the server of DATABASE_URL does not answer", async () => {
    const nowhere = `postgres://weir@127.0.0.1:${await freePort()}/weir`;
    const command = npm("start", [], { DATABASE_URL: nowhere });
    assert.equal(await command.ends(), 1);
    assert.match(command.output(), /the database of DATABASE_URL does not answer: /);
    assert.match(command.output(), /weir: fix: start it or correct DATABASE_URL/);
    await nothingListens();
  });

  it("names every port that is taken, and how to choose others", async () => {
    const command = npm("start", [], { WEIR_EDGE_PORT: new URL(required("WEIR_TEST_DATABASE_URL")).port });
    assert.equal(await command.ends(), 1);
    assert.match(command.output(), /port \d+ for the edge \(WEIR_EDGE_PORT\) is in use/);
    assert.match(command.output(), /weir: fix: .*WEIR_EDGE_PORT=\d+ npm start/);
  });
});
