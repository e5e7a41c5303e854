import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { whenOver } from "../harness/lifetime.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

test("three edge processes admit exactly 10 of 1000 submissions", {
  timeout: 300_000,
}, async () => {
  const registry = mkdtempSync(join(tmpdir(), "weir-registry-"));
  whenOver({ after }, () => rm(registry, { recursive: true, force: true }));
  const origin = await startOrigin({ after });
  const home = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, registry, vars: { COUNTER_TIMEOUT_MS: "20000" } },
  );
  const others = await Promise.all(
    ["north", "south"].map((name) =>
      startFar(name, {
        originUrl: origin.url,
        secrets: origin.secrets,
        registry,
        vars: { COUNTER_TIMEOUT_MS: "20000" },
      }),
    ),
  );
  const urls = [home.url, ...others];

  const submit = (url: string): Promise<Response> =>
    fetch(`${url}/api/jobs/analysis`, { method: "POST", body: "{}", headers: { "CF-Connecting-IP": "203.0.113.70" } });
  const answers = await Promise.all(Array.from({ length: 1000 }, (_, n) => submit(urls[n % urls.length] ?? "")));
  const count = (status: number): number => answers.filter((answer) => answer.status === status).length;
  assert.deepEqual({ passed: count(200), denied: count(429) }, { passed: 10, denied: 990 });
  assert.ok(
    answers.every((answer) => answer.headers.has("ratelimit")),
    "the object has decided, not a fallback",
  );
});

function startFar(name: string, options: object): Promise<string> {
  const child = fork(join(import.meta.dirname, "far-edge.ts"), { stdio: ["ignore", "inherit", "inherit", "ipc"] });
  whenOver({ after }, () => {
    const gone = new Promise<void>((done) => child.once("exit", () => done()));
    child.disconnect();
    return gone;
  });
  child.send({ name, ...options });
  return new Promise((done) => child.once("message", (url) => done(String(url))));
}
