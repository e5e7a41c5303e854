import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { Caller } from "../whole/jobs.ts";
import { openPage, picture } from "./browser.ts";

const stack = await startStack({ after }, { env: { WEIR_CONFIG: join(root, "examples", "images", "weir.toml") } });

describe("a product with custom meters, plans and services", () => {
  it("submits, runs, charges and shows jobs without code for their names", async (t) => {
    const id = randomUUID();
    const token = await stack.weir("token", "--plan", "hobby", "--user", id);
    assert.equal(token.code, 0, token.stderr);
    const user = new Caller(stack.edge.from(someAddress()), token.stdout.trim());

    const caption = await user.accepted("caption", { words: "a weir in a river", max_tokens: 100 });
    assert.equal(caption.job.queue, "caption_default");
    assert.equal(caption.job.reserved, 100);
    const captioned = await user.finished(caption.job.id);
    assert.deepEqual(captioned.output, { caption: "a weir in a river", used: 5 });
    assert.equal(captioned.charged, 5);

    const { page, complaints } = await openPage(t, { address: someAddress(), width: 1200, height: 1000 });
    await page.goto(stack.edge.url);
    await page.getByRole("heading", { name: "Submit a job" }).waitFor();
    await page.getByRole("tab", { name: "Your jobs" }).click();
    for (const plan of ["hobby", "team", "business"])
      await page.getByRole("button", { name: plan, exact: true }).waitFor();
    await page.getByText("I have a token").click();
    await page.getByLabel("Token").fill(token.stdout.trim());
    await page.getByRole("button", { name: "Sign in", exact: true }).click();
    await page.getByText("Plan: hobby").waitFor();
    const quota = (name: string) => page.locator(".quota").filter({ has: page.getByText(name, { exact: true }) });
    await quota("tokens, tokens").getByText("used 5 · reserved 0 · left 19,995").waitFor();
    await quota("renders, images (per hour)").getByText("used 0 · reserved 0 · left 10").waitFor();
    await quota("previews, images (per minute)").getByText("left 20").waitFor();

    await page.getByRole("tab", { name: "Try it" }).click();
    await page.getByLabel("Service").selectOption("preview");
    await page.getByLabel("Arguments, a JSON object").fill("[1]");
    await page.getByRole("button", { name: "Submit", exact: true }).click();
    await page.getByRole("alert").getByText("The arguments must be a JSON object").waitFor();
    await page.getByLabel("Arguments, a JSON object").fill('{"words": "fair & square"}');
    await page.getByRole("button", { name: "Submit", exact: true }).click();
    await page.locator("#result").getByText("fair &amp; square").waitFor();
    await picture(page, "another-product");
    await page.getByRole("tab", { name: "Your jobs" }).click();
    await page.locator("#jobs tr").filter({ hasText: "preview" }).getByText("1 charged").waitFor();
    await page.getByRole("tab", { name: "Right now" }).click();
    await page.getByRole("row", { name: /^caption/ }).waitFor();

    // Eleven at once; the hourly limit is ten.
    const renders = await Promise.all(Array.from({ length: 11 }, () => user.submit("render", { words: "a weir" })));
    const refused = renders.filter((response) => response.status === 429);
    assert.deepEqual(new Set(renders.map((response) => response.status)), new Set([202, 429]));
    assert.ok(refused.length >= 1);
    const fields = refused[0]?.headers.get("RateLimit-Policy");
    assert.match(fields ?? "", /^"renders-month";q=50;w=\d+, "renders-hour";q=10;w=3600$/);

    const audit = await stack.weir("audit");
    assert.equal(audit.code, 0, audit.stdout + audit.stderr);
    assert.deepEqual(complaints, []);
  });
});
