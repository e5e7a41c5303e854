import assert from "node:assert/strict";
import { after, test } from "node:test";
import type { V4WorkerOptions as WorkerOptions } from "miniflare";
import { startOrigin } from "./origin.ts";
import { startEdge, type Edge } from "./workerd.ts";

const origin = await startOrigin({ after });

/** The edge with other objects in the place of its counters. */
async function edgeWith(
  counter: string,
  options: { vars?: Record<string, string>; native?: boolean } = {},
): Promise<Edge> {
  const broken: WorkerOptions = {
    name: "broken",
    modules: true,
    durableObjects: { SELF: { className: "Broken", useSQLite: true } },
    compatibilityDate: "2026-09-01",
    script: `
      import { DurableObject } from "cloudflare:workers";
      export class Broken extends DurableObject { ${counter} }
      export default { fetch() { return new Response() } };`,
  } as WorkerOptions;
  return startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { COUNTER_TIMEOUT_MS: "200", ...options.vars },
      worker: {
        durableObjects: { ADDRESS_COUNTERS: { className: "Broken", scriptName: "broken", useSQLite: true } },
        // Local data sets take points and drop them; what is tested is that they can be written.
        analyticsEngineDatasets: { METRICS: { dataset: "events" } },
        ...(options.native === false ? { ratelimits: {} } : {}),
      } as Partial<WorkerOptions>,
      beside: [broken],
    },
  );
}

const hangs = "async take() { await new Promise(() => setTimeout(() => undefined, 60_000)); }";
const fails = "async take() { throw new Error('out of order'); }";
const lies = "async take() { return 'certainly'; }";

async function answers(edge: Edge, address: string, count: number): Promise<Response[]> {
  const answers = [];
  for (let sent = 0; sent < count; sent++)
    answers.push(await edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" }));
  return answers;
}

for (const [how, counter] of Object.entries({ hangs, fails, lies })) {
  test(`when the counting object ${how}, the native limiter decides, within a bounded time`, async () => {
    const edge = await edgeWith(counter);
    const started = Date.now();
    const all = await answers(edge, "203.0.113.40", 12);
    assert.ok(Date.now() - started < 12 * 1000, "no request waits for long");
    assert.deepEqual(
      all.map((answer) => answer.status),
      [...Array(10).fill(200), 429, 429],
    );
    assert.equal(all[0]?.headers.get("ratelimit"), null, "what is left is not known, so nothing is claimed");
    assert.equal(all[0]?.headers.get("ratelimit-policy"), '"anon";q=10;w=60');
    assert.equal(all[11]?.headers.get("retry-after"), "60");
    assert.equal(edge.logs.filter((line) => line.includes("counter_unavailable")).length, 12);
  });
}

test("when nothing can count, submissions are refused, unless the operator says otherwise; users are not concerned", async () => {
  const closed = await edgeWith(fails, { native: false });
  const [refused] = await answers(closed, "203.0.113.41", 1);
  assert.equal(refused?.status, 503);
  assert.equal(refused?.headers.get("retry-after"), "10");
  assert.equal(
    ((await refused?.json()) as { type: string }).type,
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
  );
  assert.ok(closed.logs.some((line) => line.includes("limiter_unavailable")));
  assert.equal((await closed.from("203.0.113.41")("/api/usage")).status, 200, "reads go on");

  const open = await edgeWith(fails, { native: false, vars: { WITHOUT_COUNTER: "open" } });
  assert.deepEqual(
    (await answers(open, "203.0.113.41", 12)).map((answer) => answer.status),
    Array(12).fill(200),
  );
});
