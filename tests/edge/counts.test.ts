import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { tokenFor } from "../harness/identity.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { type EdgeReport, type Origin, startOrigin, total } from "./origin.ts";
import { costs, type Edge, startEdge, timeInTheMinute } from "./workerd.ts";

const interval = 300;
const start = (origin: Origin, vars: Record<string, string> = {}): Promise<Edge> =>
  startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { REPORT_INTERVAL_MS: String(interval), ...vars } },
  );
const submit = (edge: Edge, address: string, headers: Record<string, string> = {}): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}", headers });

test("the outcome of every request is reported to the origin", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { ANON_READ_LIMIT: "2" });
  const token = await tokenFor(origin.secrets.jwt);
  for (let sent = 0; sent < 12; sent++) await submit(edge, "203.0.113.1");
  for (let sent = 0; sent < 3; sent++) await submit(edge, "203.0.113.1", { authorization: `Bearer ${token}` });
  await submit(edge, "203.0.113.2", { authorization: "Bearer bad" });
  for (let sent = 0; sent < 3; sent++) await edge.from("203.0.113.3")("/api/lanes");
  await edge.from("203.0.113.3")("/nothing");
  const wanted = {
    requests: { anonymous: 12, denied: 2, user: 3, bad_token: 1, denied_read: 1, other: 1 },
    events: {},
  };
  const sum = (of: Record<string, number>): number => Object.values(of).reduce((sum, count) => sum + count, 0);
  await until("all requests to be reported", () => sum(total(origin.reports).requests) === 20);
  assert.deepEqual(total(origin.reports), wanted);
});

test("a flood of denials makes few reports and does not call an object", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  for (let sent = 0; sent < 10; sent++) await submit(edge, "203.0.113.1");
  await until("those that were admitted to be reported", () => total(origin.reports).requests.anonymous === 10);
  const { calls } = await costs(edge);
  const began = Date.now();
  const reported = origin.reports.length;
  for (let sent = 0; sent < 500; sent++) assert.equal((await submit(edge, "203.0.113.1")).status, 429);
  await until("all denials to be reported", () => total(origin.reports).requests.denied === 500);
  const most = Math.ceil((Date.now() - began) / interval);
  assert.ok(origin.reports.length - reported <= most, `${origin.reports.length - reported} reports, ${most} intervals`);
  // An evicted object counts its calls from zero.
  assert.ok((await costs(edge)).calls <= calls);
  const quiet = origin.reports.length;
  await wait(3 * interval);
  assert.equal(origin.reports.length, quiet, "without counts there are no reports");
});

test("counts taken during a report are reported without a new request", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  let release: (() => void) | undefined;
  origin.answerReport = (_, response) => {
    if (origin.reports.length > 1) response.writeHead(204).end();
    else release = () => response.writeHead(204).end();
  };
  await submit(edge, "203.0.113.1");
  await until("the first report", () => release !== undefined);
  await submit(edge, "203.0.113.1");
  release?.();
  await until("the second report", () => total(origin.reports).requests.anonymous === 2);
});

test("a report that the origin does not accept is repeated under the same id", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  let refusals = 2;
  origin.answerReport = (_, response) => response.writeHead(refusals-- > 0 ? 503 : 204).end();
  const poked: Promise<Response>[] = [];
  const poke = setInterval(() => poked.push(submit(edge, "203.0.113.9")), 100);
  await submit(edge, "203.0.113.1");
  const another = (): EdgeReport | undefined => origin.reports.find((report) => report.id !== origin.reports[0]?.id);
  const next = await until("another report", another).finally(() => clearInterval(poke));
  // No request is in flight when the edge ends.
  await Promise.all(poked);
  const same = origin.reports.filter((report) => report.id === origin.reports[0]?.id);
  // Two reports were refused. On a busy machine, the response that accepts the third may arrive too late.
  assert.ok(same.length >= 3, `${same.length} times the same until it is accepted`);
  for (const report of same) assert.deepEqual(report, same[0]);
  assert.equal(next.events.report_rejected, same.length - 1);
  const [refusal] = await edge.logged("report_rejected");
  assert.match(refusal ?? "", /503/);
});

test("an unavailable origin and the fallback of the limiter are events", async () => {
  const origin = await startOrigin({ after });
  // An origin that hangs on requests but accepts reports.
  const hanging = await startOrigin({ after }, () => undefined);
  const edge = await start(hanging, { ORIGIN_TIMEOUT_MS: "150" });
  assert.equal((await submit(edge, "203.0.113.1")).status, 504);
  await until("the timeout to be reported", () => total(hanging.reports).events.origin_timed_out === 1);
  assert.equal(total(hanging.reports).requests.anonymous, 1, "it was forwarded");

  const noObject = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { REPORT_INTERVAL_MS: String(interval), ANON_MODE: "shadow" },
      worker: { durableObjects: {} },
    },
  );
  await timeInTheMinute();
  for (let sent = 0; sent < 12; sent++) assert.equal((await submit(noObject, "203.0.113.1")).status, 200);
  await until("all requests to be reported", () => total(origin.reports).requests.anonymous === 12);
  assert.deepEqual(total(origin.reports).events, { counter_unavailable: 11, shadow_denial: 2 });
});

test("counts are preserved across a panic, which is counted too", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { DRILLS: "on" });
  for (let sent = 0; sent < 3; sent++) await submit(edge, "203.0.113.1");
  assert.equal((await submit(edge, "203.0.113.1", { "weir-drill-panic": "1" })).status, 500);
  await submit(edge, "203.0.113.1");
  await until(
    "the requests after the flood to be reported",
    () => (total(origin.reports).requests.anonymous ?? 0) >= 4,
  );
  assert.deepEqual(total(origin.reports), { requests: { anonymous: 4, failed: 1 }, events: { internal_error: 1 } });
});

test("clients cannot reach the origin's route for reports, in any spelling", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  const token = await tokenFor(origin.secrets.jwt);
  const body = JSON.stringify({ requests: { user: 1000 } });
  for (const path of [
    "/api/edge/counts",
    "/api//edge/counts",
    "/api/%65dge/counts",
    "/api/edge%2Fcounts",
    "/api/edge/counts?x",
    "/api/x/../edge/counts",
    "/api/edge/",
  ]) {
    for (const headers of [{}, { authorization: `Bearer ${token}` }]) {
      assert.equal((await edge.from("203.0.113.1")(path, { method: "POST", body, headers })).status, 404, path);
    }
  }
  assert.equal(origin.received.length, 0);
  await until("all requests to be reported", () => total(origin.reports).requests.other === 14);
  assert.deepEqual(total(origin.reports).requests, { other: 14 });
});

test("while the origin is unreachable, limits still apply", async () => {
  const edge = await startEdge(
    { after },
    { originUrl: `http://127.0.0.1:${await freePort()}`, vars: { REPORT_INTERVAL_MS: String(interval) } },
  );
  for (let sent = 0; sent < 12; sent++) {
    assert.equal((await submit(edge, "203.0.113.1")).status, sent < 10 ? 502 : 429);
    await wait(50);
  }
  await edge.logged("report_rejected");
});
