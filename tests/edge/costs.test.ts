import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { until } from "../harness/until.ts";
import { startOrigin } from "./origin.ts";
import { costs, counterName, type Edge, edgeName, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const submit = (edge: Edge, address: string): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" });

/**
 * Calls the counting object every other second until the returned function is called. The runtime evicts an object
 * after ten seconds without calls, and a busy machine causes such pauses. The object does not count these calls.
 */
function keepAwake(edge: Edge): () => void {
  const calling = setInterval(() => void costs(edge).catch(() => {}), 2000);
  return () => clearInterval(calling);
}

// Each test has a separate edge, and waits most of the time.
describe("the cost of counting", { concurrency: true }, () => {
  it("each admitted request writes a row; denied ones do not call objects", {
    timeout: 600_000,
  }, async (t) => {
    const edge = await startEdge(
      { after },
      // The window lasts until the end, however slow the machine is.
      { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_WINDOW: "3600" } },
    );
    t.after(keepAwake(edge));
    for (let round = 0; round < 10; round++) {
      const answers = await Promise.all(Array.from({ length: 100 }, (_, n) => submit(edge, `198.51.100.${n}`)));
      assert.ok(answers.every((answer) => answer.status === 200));
    }
    const admitted = await costs(edge);
    // An object that is evicted all the same counts its costs from zero.
    assert.ok(admitted.calls <= 1000 && admitted.rows <= admitted.calls + 1, "a row each, and one for the alarm");
    assert.equal(admitted.addresses, 100);
    // The isolate remembers the addresses that have used up their limit.
    for (let round = 0; round < 10; round++) {
      const answers = await Promise.all(Array.from({ length: 100 }, (_, n) => submit(edge, `198.51.100.${n}`)));
      assert.ok(answers.every((answer) => answer.status === 429));
    }
    assert.ok((await costs(edge)).calls <= admitted.calls);
  });

  it("nothing is stored after the last window", { timeout: 300_000 }, async () => {
    const edge = await startEdge(
      { after },
      { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_WINDOW: "12" } },
    );
    const tables = async (): Promise<string[]> => {
      const storage = await edge.miniflare.unsafeGetDurableObjectStorage(edgeName, "AddressCounter", {
        name: counterName,
      });
      const rows = (await storage.exec("SELECT name FROM sqlite_master")) as unknown as { name: string }[];
      // The local runtime adds a table.
      return rows.map((row) => row.name).filter((name) => !name.startsWith("__miniflare"));
    };
    await submit(edge, "198.51.100.1");
    assert.ok((await tables()).includes("_cf_KV"));
    await wait(15_000);
    await until("the alarm", async () => (await tables()).length === 0);
    assert.equal((await submit(edge, "198.51.100.1")).headers.get("ratelimit"), '"anon";r=9;t=12');
  });

  it("an evicted object keeps its counts", async () => {
    const edge = await startEdge(
      { after },
      { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_WINDOW: "3600" } },
    );
    for (let sent = 0; sent < 6; sent++) await submit(edge, "198.51.100.3");
    await edge.evict();
    assert.equal((await costs(edge)).calls, 0, "the object was constructed again");
    const statuses = [];
    for (let sent = 0; sent < 6; sent++) statuses.push((await submit(edge, "198.51.100.3")).status);
    assert.deepEqual(statuses, [200, 200, 200, 200, 429, 429]);
  });
});
