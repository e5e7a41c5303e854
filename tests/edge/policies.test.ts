import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { startOrigin } from "./origin.ts";
import { costs, type Edge, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const start = (vars: Record<string, string> = {}): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });

const submit = (edge: Edge, address: string, headers: Record<string, string> = {}): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}", headers });

test("other anonymous requests use the looser policy without an object", async () => {
  const edge = await start({ ANON_READ_LIMIT: "20" });
  const read = edge.from("203.0.113.50");
  const first = await read("/api/jobs/1");
  assert.equal(first.headers.get("ratelimit-policy"), '"anon-read";q=20;w=60');
  assert.equal(first.headers.get("ratelimit"), '"anon-read";r=19;t=60');
  for (let sent = 0; sent < 19; sent++) assert.equal((await read("/api/lanes")).status, 200);
  const denied = await read("/api/lanes");
  assert.equal(denied.status, 429);
  assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], ["anon-read"]);
  assert.match(denied.headers.get("retry-after") ?? "", /^(60|5\d)$/);
  assert.equal((await costs(edge)).calls, 0);
  assert.equal((await submit(edge, "203.0.113.50")).status, 200, "submissions are counted separately");
  assert.equal((await read("/")).status, 200, "the page is not limited");
});

test("the limited routes are configurable", async () => {
  const edge = await start({ LIMITED_ROUTES: "* /api/lanes", ANON_LIMIT: "2", ANON_WINDOW: "5" });
  const ask = edge.from("203.0.113.51");
  assert.equal((await ask("/api/lanes")).headers.get("ratelimit-policy"), '"anon";q=2;w=5');
  await ask("/api/lanes");
  assert.equal((await ask("/api/lanes")).status, 429);
  assert.match((await submit(edge, "203.0.113.51")).headers.get("ratelimit-policy") ?? "", /anon-read/);
});

test("another spelling of a path does not have another policy", async () => {
  const edge = await start({ ANON_LIMIT: "2" });
  const spell = (path: string): Promise<Response> => edge.from("203.0.113.52")(path, { method: "POST", body: "{}" });
  await spell("/api/jobs/analysis");
  await spell("/api//jobs/analysis");
  assert.equal((await spell("/api/%6aobs/analysis")).status, 429);
  assert.equal((await spell("/api/Jobs/analysis")).status, 429, "the origin may ignore case");
});

test("shadow mode counts and reports everything and does not deny requests", async () => {
  const edge = await start({ ANON_MODE: "shadow" });
  const statuses = [];
  for (let sent = 0; sent < 13; sent++) statuses.push(await submit(edge, "203.0.113.53"));
  assert.ok(statuses.every((answer) => answer.status === 200));
  assert.equal(statuses[12]?.headers.get("ratelimit")?.startsWith('"anon";r=0;'), true);
  await edge.logged("shadow_denial");
});

/**
 * Sends four submissions within one window: one, and three more after 60 % of the window. The last one is denied.
 * Returns when the window has certainly ended. The edge counts a submission after it was sent and before its response.
 * If a busy machine is too slow for one window, another address tries again.
 */
async function acrossAWindow(edge: Edge, windowMs: number, network: string): Promise<() => Promise<number>> {
  for (let host = 1; host <= 5; host++) {
    const status = async (): Promise<number> => (await submit(edge, `${network}.${host}`)).status;
    const sentAt = Date.now();
    assert.equal(await status(), 200);
    const answeredAt = Date.now();
    await wait(answeredAt + windowMs * 0.6 - Date.now());
    const statuses = [await status(), await status(), await status()];
    if (Date.now() >= sentAt + windowMs) continue;
    assert.deepEqual(statuses, [200, 200, 429]);
    // Timers may fire a millisecond early.
    await wait(answeredAt + windowMs + 5 - Date.now());
    return status;
  }
  throw new Error("this machine is too busy to send four requests within a window");
}

test("the fixed window of an address ends its length after the first request", {
  timeout: 600_000,
}, async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_WINDOW: "10" });
  for (let tries = 0; tries < 5; tries++) {
    const status = await acrossAWindow(edge, 10_000, `203.0.${tries}`);
    const startedAt = Date.now();
    const statuses = [await status(), await status(), await status(), await status()];
    if (Date.now() >= startedAt + 10_000) continue;
    assert.deepEqual(statuses, [200, 200, 200, 429]);
    return;
  }
  assert.fail("this machine is too busy to send four requests within a window");
});

test("a sliding window makes room evenly", { timeout: 600_000 }, async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_WINDOW: "60", ANON_ALGORITHM: "sliding" });
  for (let host = 1; host <= 5; host++) {
    const status = async (): Promise<number> => (await submit(edge, `203.1.0.${host}`)).status;
    const startedAt = Date.now();
    const burst = [await status(), await status(), await status(), await status()];
    if (Date.now() >= startedAt + 15_000) continue;
    assert.deepEqual(burst, [200, 200, 200, 429]);
    await wait(startedAt + 21_000 - Date.now());
    const later = [await status(), await status()];
    if (Date.now() >= startedAt + 38_000) continue;
    assert.deepEqual(later, [200, 429], "one after a third of the window");
    return;
  }
  assert.fail("this machine is too busy to send four requests in 15 seconds");
});

test("a trusted proxy's headers name the client in the ADR's order", async () => {
  const edge = await start({ CLIENT_IP_SOURCE: "proxy", ANON_LIMIT: "2" });
  const from = (headers: Record<string, string>): Promise<Response> => submit(edge, "192.0.2.1", headers);
  await from({ "x-forwarded-for": "198.51.100.1, 10.0.0.1" });
  assert.equal(origin.last().claims.client_address, "198.51.100.1");
  await from({ "x-forwarded-for": "198.51.100.1:4711", "x-real-ip": "198.51.100.2" });
  assert.equal((await from({ "x-real-ip": "198.51.100.1" })).status, 429);
  await from({ "x-real-ip": "198.51.100.3" });
  assert.equal(origin.last().claims.client_address, "198.51.100.3");
  await from({});
  assert.equal(origin.last().claims.client_address, "192.0.2.1");
});

test("requests without an address share a count, Workers one per zone", async () => {
  const edge = await start({ ANON_LIMIT: "2" });
  for (const garbage of ["not an address", "999.1.1.1"]) assert.equal((await submit(edge, garbage)).status, 200);
  assert.equal(origin.last().claims.client_address, "unknown");
  assert.equal((await submit(edge, "still not one")).status, 429);
  await edge.logged("address_unknown");
  const worker = (zone: string): Promise<Response> => submit(edge, "2a06:98c0:3600::103", { "cf-worker": zone });
  await worker("a.example");
  await worker("a.example");
  assert.equal((await worker("a.example")).status, 429);
  assert.equal((await worker("b.example")).status, 200);
});

test("with several objects per region, counts are exact too", async () => {
  const edge = await start({ COUNTER_SHARDS: "4" });
  const passed: Record<string, number> = {};
  await Promise.all(
    Array.from({ length: 20 * 15 }, async (_, n) => {
      const address = `198.51.100.${n % 20}`;
      if ((await submit(edge, address)).status === 200) passed[address] = (passed[address] ?? 0) + 1;
    }),
  );
  assert.deepEqual(Object.values(passed), Array(20).fill(10));
  const held = await Promise.all([0, 1, 2, 3].map(async (shard) => (await costs(edge, `enam-${shard}`)).addresses));
  assert.equal(
    held.reduce((sum, addresses) => sum + addresses, 0),
    20,
  );
  assert.ok(held.filter((addresses) => addresses > 0).length >= 3, String(held));
});

test("a panic is answered with a problem and does not lose counts", async () => {
  const edge = await start({ DRILLS: "on" });
  const left = async (headers = {}): Promise<string | null> => {
    const answer = await submit(edge, "203.0.113.57", headers);
    if (answer.status !== 500) return answer.headers.get("ratelimit");
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    return ((await answer.json()) as { title: string }).title;
  };
  const drill = { "weir-drill-panic": "1" };
  const read = edge.from("203.0.113.57");
  assert.equal((await read("/api/lanes")).headers.get("ratelimit"), '"anon-read";r=119;t=60');
  assert.equal(await left(), '"anon";r=9;t=60');
  assert.equal(await left(drill), "Internal Server Error");
  assert.match(String(await left()), /r=7/);
  assert.equal(await left(drill), "Internal Server Error");
  assert.match(String(await left()), /r=5/);
  assert.match(String((await read("/api/lanes")).headers.get("ratelimit")), /"anon-read";r=118/);
});

test("all requests that run during a panic are answered", async () => {
  const edge = await start({ DRILLS: "on" });
  const all = await Promise.all(
    Array.from({ length: 40 }, (_, n) =>
      submit(edge, `203.0.113.${100 + n}`, n === 20 ? { "weir-drill-panic": "1" } : {}),
    ),
  );
  assert.equal(all.filter((answer) => answer.status !== 200 && answer.status !== 500).length, 0);
  assert.ok(all.filter((answer) => answer.status === 500).length >= 1);
  for (const answer of all)
    if (answer.status === 500) assert.equal(answer.headers.get("content-type"), "application/problem+json");
  assert.equal((await submit(edge, "203.0.113.99")).status, 200);
});

test("a trap without a panic fails all running requests at once", { timeout: 60_000 }, async () => {
  const [asked, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const slow = await startOrigin({ after }, async (_, response) => {
    asked.resolve();
    await released.promise;
    response.writeHead(200).end("{}");
  });
  const edge = await startEdge({ after }, { originUrl: slow.url, secrets: slow.secrets, vars: { DRILLS: "on" } });
  const running = submit(edge, "203.0.113.61");
  await asked.promise;
  const trapped = await submit(edge, "203.0.113.62", { "weir-drill-panic": "trap" });
  assert.deepEqual([trapped.status, (await running).status], [500, 500]);
  assert.equal(trapped.headers.get("content-type"), "application/problem+json");
  released.resolve();
  assert.equal((await submit(edge, "203.0.113.63")).status, 200);
});

test("without DRILLS, requests cannot cause panics", async () => {
  const edge = await start();
  assert.equal((await submit(edge, "203.0.113.58", { "weir-drill-panic": "1" })).status, 200);
});
