import assert from "node:assert/strict";
import { after, test } from "node:test";
import { startOrigin } from "./origin.ts";
import { costs, type Edge, startEdge } from "./workerd.ts";

// A subscriber with an IPv6 /48 has 65,536 /64s, each with a separate limit.

const origin = await startOrigin({ after });
const start = (vars: Record<string, string>): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });
const submit = (edge: Edge, address: string): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" });

/** Sends submissions from `subnets` /64s of the /48 `2001:db8:{site}`, and returns how many are admitted. */
async function admitted(edge: Edge, site: string, subnets: number, each: number): Promise<number> {
  const addresses = Array.from(
    { length: subnets * each },
    (_, n) => `2001:db8:${site}:${(n % subnets).toString(16)}::1`,
  );
  const responses = await Promise.all(addresses.map((address) => submit(edge, address)));
  return responses.filter((response) => response.status === 200).length;
}

test("the /64s of one /48 do not get more than the limit of the /48 together", async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_PREFIX_LIMIT: "7" });
  assert.equal(await admitted(edge, "1", 20, 2), 7);
  const denied = await submit(edge, "2001:db8:1:ffff::1");
  assert.equal(denied.status, 429);
  assert.equal(denied.headers.get("ratelimit-policy"), '"anon-prefix";q=7;w=60');
  assert.match(denied.headers.get("ratelimit") ?? "", /^"anon-prefix";r=0;t=\d+$/);
  assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], ["anon-prefix"]);
  assert.equal((await submit(edge, "2001:db8:2::1")).status, 200, "another /48");
  assert.equal(await admitted(edge, "3", 1, 10), 3, "each /64 keeps its own limit");
});

test("by default, a /48 gets no more than ten times the limit of a /64", async () => {
  const edge = await start({ ANON_LIMIT: "2" });
  assert.equal(await admitted(edge, "4", 30, 1), 20);
});

test("several counting objects do not multiply the limit of a /48", async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_PREFIX_LIMIT: "6", COUNTER_SHARDS: "4" });
  assert.equal(await admitted(edge, "5", 40, 1), 6);
});

test("a denied /48 stays denied without the object, also after eviction", async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_PREFIX_LIMIT: "5" });
  assert.equal(await admitted(edge, "6", 10, 1), 5);
  const { calls } = await costs(edge);
  for (let subnet = 100; subnet < 120; subnet++) {
    assert.equal((await submit(edge, `2001:db8:6:${subnet}::1`)).status, 429);
  }
  assert.ok((await costs(edge)).calls <= calls);
});

test("an eviction of the counting object does not forget the count of a /48", async () => {
  const edge = await start({ ANON_LIMIT: "3", ANON_PREFIX_LIMIT: "5" });
  assert.equal(await admitted(edge, "7", 4, 1), 4);
  await edge.evict();
  assert.equal((await costs(edge)).calls, 0, "the object has been constructed again");
  assert.equal(await admitted(edge, "7", 20, 1), 1);
});

test("the /64s of one /48 get at most ten times the limit together", async () => {
  const edge = await start({ ANON_READ_LIMIT: "2" });
  let passed = 0;
  for (let subnet = 0; subnet < 30; subnet++) {
    const response = await edge.from(`2001:db8:8:${subnet}::1`)("/api/lanes");
    if (response.status === 200) passed++;
    else assert.equal(response.headers.get("ratelimit-policy"), '"anon-read-prefix";q=20;w=60');
  }
  assert.equal(passed, 20);
});
