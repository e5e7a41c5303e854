import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { whenOver } from "../harness/lifetime.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, startEdge } from "./workerd.ts";

// When the runtime is killed, the objects lose their memory, and so do the isolates that would restore their counts.

const origin = await startOrigin({ after });

interface KillableEdge {
  submit(address: string): Promise<Response>;
  /** Kills all of its processes. */
  kill(): Promise<void>;
}

/** An edge in its own processes. */
async function startKillableEdge(storage: string): Promise<KillableEdge> {
  // Killed processes leave their temporary files behind.
  const env = { ...process.env, TMPDIR: freshFolder() };
  const child = fork(join(import.meta.dirname, "far-edge.ts"), { env, stdio: ["ignore", "inherit", "ignore", "ipc"] });
  const gone = new Promise<void>((done) => child.once("exit", () => done()));
  const kill = (): Promise<void> => {
    for (const pid of [...childrenOf(child.pid), child.pid]) {
      try {
        if (pid) process.kill(pid, "SIGKILL");
      } catch {
        // The process has ended already.
      }
    }
    return gone;
  };
  whenOver({ after }, kill);
  const url = new Promise((done) => child.once("message", done));
  child.send({ originUrl: origin.url, secrets: origin.secrets, storage });
  const edge = String(await url);
  return {
    submit: (address) =>
      fetch(`${edge}/api/jobs/analysis`, { method: "POST", body: "{}", headers: { "CF-Connecting-IP": address } }),
    kill,
  };
}

/** The runtime is a child of the process that started it. */
function childrenOf(parent: number | undefined): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return new RegExp(`^PPid:\\s+${parent}$`, "m").test(readFileSync(`/proc/${pid}/status`, "utf8"));
      } catch {
        return false;
      }
    })
    .map(Number);
}

function freshFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "weir-edge-"));
  after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** The requests that an address has left after one more, at an edge that only knows the stored counts. */
async function leftAfterwards(storage: string, address: string): Promise<number> {
  const edge: Edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, storage });
  const answer = await edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" });
  await edge.miniflare.dispose();
  return Number(/r=(\d+)/.exec(answer.headers.get("ratelimit") ?? "")?.[1]);
}

test("a kill does not lose answered requests", { timeout: 300_000 }, async () => {
  const storage = freshFolder();
  const edge = await startKillableEdge(storage);
  for (let sent = 0; sent < 3; sent++) assert.equal((await edge.submit("203.0.113.1")).status, 200);
  await edge.kill();
  assert.equal(await leftAfterwards(storage, "203.0.113.1"), 6);
});

test("a kill under load does not lose answered requests", { timeout: 300_000 }, async () => {
  const storage = freshFolder();
  const edge = await startKillableEdge(storage);
  const others = setInterval(
    () => void edge.submit(`198.51.100.${Math.floor(Math.random() * 250)}`).catch(() => undefined),
    20,
  );
  after(() => clearInterval(others));
  await wait(1_000);
  const answers = await Promise.all(Array.from({ length: 8 }, () => edge.submit("203.0.113.3")));
  assert.ok(answers.every((answer) => answer.status === 200));
  clearInterval(others);
  await edge.kill();
  assert.equal(await leftAfterwards(storage, "203.0.113.3"), 1);
});
