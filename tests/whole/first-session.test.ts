import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import type { Job } from "../../www/src/generated/api.d.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { Caller } from "./jobs.ts";
import { goFile, goTests, rustFile, rustTests } from "./samples.ts";

const stack = await startStack({ after });

describe("a first session, through the edge, the origin and the workers", () => {
  it("accepts ten anonymous submissions a minute, then returns when to retry", async () => {
    const anonymous = new Caller(stack.edge.from(someAddress()));
    const responses: Response[] = [];
    for (let n = 0; n < 12; n++) responses.push(await anonymous.submit("analysis", { files: [goFile] }));
    assert.deepEqual(
      responses.map((response) => response.status),
      [...Array<number>(10).fill(202), 429, 429],
    );
    for (const response of responses.slice(10)) {
      assert.match(response.headers.get("content-type") ?? "", /^application\/problem\+json/);
      const problem = (await response.json()) as Record<string, unknown>;
      assert.equal(problem.title, "Too Many Requests");
      assert.equal(problem.status, 429);
      assert.equal(problem.detail, "Rate limit exceeded. Please sign in for higher limits or try again later.");
      const wait = Number(response.headers.get("retry-after"));
      assert.ok(wait >= 1 && wait <= 60, `Retry-After: ${response.headers.get("retry-after")}`);
    }
    const [first] = responses;
    assert.ok(first);
    const { job } = (await first.json()) as { job: Job };
    const finished = await anonymous.finished(job.id);
    assert.equal(finished.status, "completed", JSON.stringify(finished));
  });

  it("limits each address on its own, and does not limit users", async () => {
    const other = new Caller(stack.edge.from(someAddress()));
    await other.accepted("analysis", { files: [rustFile] });
    const address = someAddress();
    const pro = await signIn("pro", address);
    for (let n = 0; n < 12; n++) await pro.accepted("analysis", { files: [goFile] });
  });

  it("runs an analysis and its specification, and charges each once", async () => {
    const user = await signIn("free");
    const before = await user.usage();
    assert.deepEqual([before.plan, before.analysis.used, before.analysis.reserved], ["free", 0, 0]);

    const submitted = await user.accepted("analysis", { files: [goFile, rustFile] });
    assert.equal(submitted.job.service, "analysis");
    assert.equal(submitted.job.queue, "analysis_default");
    assert.equal(submitted.quota?.reserved, 1, "the answer reports its reservation");
    assert.equal(submitted.quota?.remaining, (submitted.quota?.limit ?? 0) - 1);

    const analysis = await user.finished(submitted.job.id);
    assert.equal(analysis.status, "completed", JSON.stringify(analysis));
    assert.equal(analysis.charged, 1);
    const found = analysis.output as { count: number; tests: { name: string; file: string; line: number }[] };
    assert.deepEqual(found.tests.map((test) => test.name).sort(), [...goTests, ...rustTests].sort());
    assert.equal(found.count, 5);
    const after = await user.usage();
    assert.deepEqual([after.analysis.used, after.analysis.reserved], [1, 0]);

    const spec = await user.accepted("specview", { analysis_id: analysis.id });
    const rendered = await user.finished(spec.job.id);
    assert.equal(rendered.status, "completed", JSON.stringify(rendered));
    assert.equal(rendered.charged, 5);
    const markdown = String((rendered.output as { markdown: string }).markdown);
    assert.match(markdown, /^#/m);
    const end = await user.usage();
    assert.deepEqual([end.specview.used, end.specview.reserved], [5, 0]);

    const again = await user.finished((await user.accepted("specview", { analysis_id: analysis.id })).job.id);
    assert.equal(again.charged, 0, "an earlier rendering is not charged again");
    const korean = await user.accepted("specview", { analysis_id: analysis.id, language: "ko" });
    assert.equal((await user.finished(korean.job.id)).charged, 5, "another language is another rendering");
    for (const args of [{ analysis_id: 999_999 }, { analysis_id: analysis.id, language: "fr" }])
      assert.equal((await user.submit("specview", args)).status, 422, JSON.stringify(args));
    const stranger = await signIn("free");
    assert.equal((await stranger.submit("specview", { analysis_id: analysis.id })).status, 422);
  });

  it("hides the jobs of other callers", async () => {
    const owner = await signIn("free");
    const { job } = await owner.accepted("analysis", { files: [goFile] });
    const stranger = await signIn("free");
    assert.equal((await stranger.request(`/api/jobs/${job.id}`)).status, 404);
    assert.equal((await new Caller(stack.edge.from(someAddress())).request(`/api/jobs/${job.id}`)).status, 404);
    const { status } = await owner.finished(job.id);
    assert.equal(status, "completed");
  });

  it("refuses a bad bearer token; a bad cookie makes a caller anonymous", async () => {
    const send = stack.edge.from(someAddress());
    const bad = await send("/api/usage", { headers: { Authorization: "Bearer not.a.token" } });
    assert.equal(bad.status, 401);
    const cookie = await send("/api/lanes", { headers: { Cookie: "auth_token=not.a.token" } });
    assert.equal(cookie.status, 200);
    const list = await send("/api/jobs?limit=1", { headers: { Cookie: "auth_token=not.a.token" } });
    assert.equal(list.status, 401, "an anonymous caller has no list");
  });

  it("passes the audit at the end", async () => {
    const audit = await stack.weir("audit");
    assert.equal(audit.code, 0, audit.stdout + audit.stderr);
  });
});

async function signIn(plan: string, address = someAddress()): Promise<Caller> {
  const ran = await stack.weir("token", "--plan", plan);
  assert.equal(ran.code, 0, ran.stderr);
  return new Caller(stack.edge.from(address), ran.stdout.trim());
}
