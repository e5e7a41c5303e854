import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, describe, it } from "node:test";
import { someAddress, startStack } from "../harness/stack.ts";
import { Caller } from "./jobs.ts";
import { goFile } from "./samples.ts";

const stack = await startStack({ after });

describe("the last ten analyses of a period, requested two hundred times at once", () => {
  it("are all granted, no more than those, and charged once", async () => {
    const id = randomUUID();
    const token = await stack.weir("token", "--plan", "free", "--user", id);
    assert.equal(token.code, 0, token.stderr);
    const user = new Caller(stack.edge.from(someAddress()), token.stdout.trim());
    const { analysis, period } = await user.usage();
    const limit = analysis.limit;
    assert.ok(limit != null && limit > 10, "a Free plan has a limit");

    // The user has used the rest earlier in this period.
    const { sql } = stack.database;
    const spent = limit - 10;
    const when = new Date((Date.parse(period.start) + Date.now()) / 2);
    await sql`SELECT weir_charge(${id}, 'analysis', ${spent}, 'earlier', ${when})`;
    assert.equal((await user.usage()).analysis.remaining, 10);

    const responses = await Promise.all(
      Array.from({ length: 200 }, () => user.submit("analysis", { files: [goFile] })),
    );
    const bodies = await Promise.all(responses.map((response) => response.json() as Promise<Record<string, unknown>>));
    const statuses = responses.map((response) => response.status);
    assert.equal(statuses.filter((status) => status === 202).length, 10, tally(statuses));
    assert.equal(statuses.filter((status) => status === 429).length, 190, tally(statuses));
    const refused = bodies.find((_, index) => statuses[index] === 429);
    assert.equal(refused?.title, "Quota Exceeded");
    assert.equal((refused?.quota as { remaining: number } | undefined)?.remaining, 0);

    const during = (await user.usage()).analysis;
    assert.equal(during.used + during.reserved, limit);

    const accepted = bodies
      .filter((_, index) => statuses[index] === 202)
      .map((body) => (body.job as { id: number }).id);
    assert.equal(new Set(accepted).size, 10);
    for (const job of accepted) assert.equal((await user.finished(job)).status, "completed");
    const end = (await user.usage()).analysis;
    assert.deepEqual([end.used, end.reserved, end.remaining], [limit, 0, 0]);

    const audit = await stack.weir("audit");
    assert.equal(audit.code, 0, audit.stdout + audit.stderr);
  });
});

function tally(statuses: number[]): string {
  const counts = new Map<number, number>();
  for (const status of statuses) counts.set(status, (counts.get(status) ?? 0) + 1);
  return JSON.stringify([...counts]);
}
