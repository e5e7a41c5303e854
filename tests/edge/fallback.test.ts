import assert from "node:assert/strict";
import { after, test } from "node:test";
import type { V4WorkerOptions as WorkerOptions } from "miniflare";
import { until } from "../harness/until.ts";
import { type Origin, startOrigin, total } from "./origin.ts";
import { type Edge, startEdge, timeInTheMinute } from "./workerd.ts";

/** The edge with this class as its counting object. */
async function edgeWith(
  counter: string,
  options: { vars?: Record<string, string>; native?: boolean } = {},
): Promise<Edge & { origin: Origin }> {
  const origin = await startOrigin({ after });
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
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      // Long enough for the native limiter on a busy machine.
      vars: { COUNTER_TIMEOUT_MS: "1000", REPORT_INTERVAL_MS: "300", ...options.vars },
      worker: {
        durableObjects: { ADDRESS_COUNTERS: { className: "Broken", scriptName: "broken", useSQLite: true } },
        // Local data sets discard their points. This only tests that they can be written.
        analyticsEngineDatasets: { METRICS: { dataset: "events" } },
        ...(options.native === false ? { ratelimits: {} } : {}),
      } as Partial<WorkerOptions>,
      beside: [broken],
    },
  );
  return { ...edge, origin };
}

/** The failures of the counting object that the edge has reported. */
const failures = ({ origin }: { origin: Origin }): number => total(origin.reports).events.counter_unavailable ?? 0;

const hangs = "async take() { await new Promise(() => setTimeout(() => undefined, 60_000)); }";
const fails = "async take() { throw new Error('broken'); }";
const lies = "async take() { return 'certainly'; }";

const submit = (edge: Edge, address: string): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" });

/**
 * Twelve submissions of one address within one epoch of the native limiter, which counts per minute of the clock.
 */
async function twelveInOneMinute(edge: Edge): Promise<Response[]> {
  const minute = (): number => Math.floor(Date.now() / 60_000);
  for (let host = 1; host <= 3; host++) {
    await timeInTheMinute();
    const startedIn = minute();
    const responses = [];
    for (let sent = 0; sent < 12; sent++) responses.push(await submit(edge, `203.0.113.${host}`));
    if (minute() === startedIn) return responses;
  }
  throw new Error("this machine is too busy to send twelve requests within a minute");
}

for (const [how, counter] of Object.entries({ hangs, fails, lies })) {
  test(`the native limiter decides when the counting object ${how}`, async () => {
    const edge = await edgeWith(counter);
    const responses = await twelveInOneMinute(edge);
    assert.deepEqual(
      responses.map((response) => response.status),
      [...Array(10).fill(200), 429, 429],
    );
    for (const response of responses)
      for (const field of ["ratelimit", "ratelimit-policy"]) assert.equal(response.headers.get(field), null, field);
    assert.equal(responses[11]?.headers.get("retry-after"), "60");
    // The second denial was remembered.
    await until("the failures", () => failures(edge) >= 11);
    const lines = edge.logs.filter((line) => line.includes("counter_unavailable"));
    assert.ok(lines.length > 0 && lines.length < 11, `${lines.length} lines for 11 failures`);
  });
}

test("after a few failures the fallback skips the counting object", async () => {
  const edge = await edgeWith(`async take() { console.log("asked"); throw new Error("broken"); }`);
  await twelveInOneMinute(edge);
  await until("the failures", () => failures(edge) >= 11);
  // The edge calls it again after ten seconds. A busy machine may need that long.
  const asked = edge.logs.filter((line) => line === "asked").length;
  assert.ok(asked >= 3 && asked <= 8, `asked ${asked} times for twelve submissions`);
  await edge.logged("skipped");
});

test("a denial by the fallback is remembered", async () => {
  const edge = await edgeWith(fails);
  const denied = (await twelveInOneMinute(edge)).at(-1);
  assert.equal(denied?.status, 429);
  await until("the failures", () => failures(edge) >= 11);
  const before = failures(edge);
  const statuses = [];
  for (let sent = 0; sent < 10; sent++) statuses.push((await submit(edge, "203.0.113.1")).status);
  assert.deepEqual(statuses, Array(10).fill(429));
  await submit(edge, "203.0.113.99");
  await until("another failure", () => failures(edge) > before);
  assert.ok(failures(edge) < before + 10, "neither the object nor the native limiter was asked each time");
});

test("the native limiter decides when the counting object is full", async () => {
  const edge = await edgeWith("async take() { return -1; }");
  const responses = await twelveInOneMinute(edge);
  assert.deepEqual(
    responses.map((response) => response.status),
    [...Array(10).fill(200), 429, 429],
  );
  await until("the event", () => (total(edge.origin.reports).events.counter_full ?? 0) >= 11);
  await edge.logged("counter_full");
  assert.equal(failures(edge), 0);
});

test("an object that answers again decides again", async () => {
  const edge = await edgeWith(`
    static asked = 0;
    async take() { if (Broken.asked++ < 3) throw new Error("broken"); return 'certainly'; }`);
  for (let sent = 0; sent < 5; sent++) await submit(edge, `203.0.113.${60 + sent}`);
  await edge.logged("skipped");
  await until("the object to be asked again", async () => {
    await submit(edge, "203.0.113.70");
    return edge.logs.some((line) => line.includes("returned no result"));
  });
});

test("a counting object that hangs does not make a submission hang", async () => {
  const edge = await edgeWith(hangs);
  const startedAt = Date.now();
  assert.equal((await submit(edge, "203.0.113.40")).status, 200);
  assert.ok(Date.now() - startedAt < 20_000, "the object would have answered after 60 s");
});

test("submissions that cannot be counted are refused; reads continue", async () => {
  const closed = await edgeWith(fails, { native: false });
  const refused = await submit(closed, "203.0.113.41");
  assert.equal(refused.status, 503);
  assert.equal(refused.headers.get("retry-after"), "10");
  assert.equal(
    ((await refused.json()) as { type: string }).type,
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
  );
  await closed.logged("limiter_unavailable");
  assert.equal((await closed.from("203.0.113.41")("/api/usage")).status, 200, "reads continue");

  const open = await edgeWith(fails, { native: false, vars: { WITHOUT_COUNTER: "open" } });
  for (let sent = 0; sent < 12; sent++) assert.equal((await submit(open, "203.0.113.41")).status, 200);
});
