import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { tokenFor } from "../harness/identity.ts";
import { until } from "../harness/until.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const hanging = await startOrigin({ after }, () => undefined);
const start = (vars: Record<string, string> = {}, to = origin): Promise<Edge> =>
  startEdge({ after }, { originUrl: to.url, secrets: to.secrets, vars });

interface Line {
  event: string;
  request_id: string;
  user?: string;
  method: string;
  path: string;
  status: number;
  outcome: string;
  duration_ms: number;
}

/** The access log so far. */
function read(edge: Edge): Line[] {
  return edge.logs
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as Line)
    .filter((line) => line.event === "request");
}

/** The access log, once it has this many lines. */
async function lines(edge: Edge, wanted: number): Promise<Line[]> {
  await until(`${wanted} lines`, () => read(edge).length >= wanted);
  await wait(100);
  return read(edge);
}

/** The access log after a line has had time to arrive. */
async function linesLater(edge: Edge): Promise<Line[]> {
  await wait(2000);
  return read(edge);
}

test("ACCESS_LOG=all logs one line per request with its request id", async () => {
  const edge = await start({ ACCESS_LOG: "all" });
  const user = randomUUID();
  const token = await tokenFor(origin.secrets.jwt, user);
  const ask = edge.from("203.0.113.1");
  const answers = [await ask("/api/usage?secret=1", { headers: { authorization: `Bearer ${token}` } })];
  assert.equal(origin.last().headers["x-request-id"], answers[0]?.headers.get("x-request-id"));
  for (let sent = 0; sent < 11; sent++) answers.push(await ask("/api/jobs/analysis", { method: "POST", body: "{}" }));
  answers.push(await ask("/api/lanes", { headers: { authorization: "Bearer bad.token.here" } }));
  const log = await lines(edge, 13);
  assert.equal(log.length, 13);
  assert.deepEqual(
    log.map((line) => line.request_id),
    answers.map((answer) => answer.headers.get("x-request-id")),
  );
  assert.deepEqual(
    log.map((line) => line.status),
    answers.map((answer) => answer.status),
  );
  const [first, second] = log;
  assert.ok(first && second && first.duration_ms >= 0 && first.duration_ms < 5000);
  assert.deepEqual(
    { ...first, request_id: "", duration_ms: 0 },
    {
      event: "request",
      request_id: "",
      user,
      method: "GET",
      path: "/api/usage",
      status: 200,
      outcome: "user",
      duration_ms: 0,
    },
  );
  assert.deepEqual(
    { ...second, request_id: "", duration_ms: 0 },
    {
      event: "request",
      request_id: "",
      method: "POST",
      path: "/api/jobs/analysis",
      status: 200,
      outcome: "anonymous",
      duration_ms: 0,
    },
  );
  assert.deepEqual(
    [log[11]?.status, log[11]?.outcome, log[12]?.status, log[12]?.outcome],
    [429, "denied", 401, "bad_token"],
  );
  for (const text of edge.logs) assert.doesNotMatch(text, /203\.0\.113|eyJ|secret|bad\.token/, text);
});

test("by default, only errors that end at the edge are logged", async () => {
  const edge = await start({ ORIGIN_TIMEOUT_MS: "150" }, hanging);
  const ask = edge.from("203.0.113.2");
  const late = await ask("/api/lanes");
  assert.equal(late.status, 504);
  assert.equal((await ask("/api/lanes", { headers: { authorization: "Bearer bad" } })).status, 401);
  for (let sent = 0; sent < 11; sent++)
    await ask("/api/jobs/analysis", {
      method: "OPTIONS",
      headers: { origin: "https://a.example", "access-control-request-method": "POST" },
    });
  const log = await lines(edge, 2);
  assert.deepEqual(
    log.map((line) => [line.status, line.outcome]),
    [
      [504, "anonymous"],
      [401, "bad_token"],
    ],
  );
  assert.equal(log[0]?.request_id, late.headers.get("x-request-id"));
  const [event] = await edge.logged("origin_timed_out");
  assert.equal((JSON.parse(event ?? "{}") as Line).request_id, log[0]?.request_id, "the event has the same id");

  const good = await start();
  for (let sent = 0; sent < 12; sent++)
    await good.from("203.0.113.2")("/api/jobs/analysis", { method: "POST", body: "{}" });
  assert.deepEqual(await linesLater(good), [], "neither admissions nor denials");
});

test("with ACCESS_LOG=off, nothing is logged", async () => {
  const edge = await start({ ACCESS_LOG: "off", ORIGIN_TIMEOUT_MS: "150" }, hanging);
  assert.equal((await edge.from("203.0.113.3")("/api/lanes")).status, 504);
  assert.deepEqual(await linesLater(edge), []);
});
