import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { someAddress, startStack } from "../harness/stack.ts";
import { openPage, picture } from "./browser.ts";
import { slowAnalysis } from "./slow.ts";

const stack = await startStack({ after });
const slow = await startStack({ after }, { env: { WEIR_CONFIG: slowAnalysis(0.2) } });
/** Slow enough that a page that updates ten times a second shows every job running. */
const slower = await startStack({ after }, { env: { WEIR_CONFIG: slowAnalysis(0.5) } });

/** Records the states that each job's row shows. */
const keepStates = `
  globalThis.states = {};
  new MutationObserver(() => {
    for (const row of document.querySelectorAll("#jobs tr")) {
      const said = (states[row.cells[0].textContent] ??= []);
      const now = row.cells[2].textContent;
      if (said.at(-1) !== now) said.push(now);
    }
  }).observe(document.getElementById("jobs"), { childList: true, subtree: true });
`;

describe("the page for a signed-in user", () => {
  it("shows the quota, runs an analysis and shows its specification", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 1200, height: 1000 });
    await page.goto(stack.edge.url);
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByText("Plan: Free").waitFor();
    await page.getByText(/used 0 · reserved 0 · left 50 ·/).waitFor();
    await page.getByText("Signed in: no limit per minute, your plan's quota counts.").waitFor();

    await page.getByLabel("Or take a sample").selectOption("Python");
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByText(/used 1 · reserved 0 · left 49 ·/).waitFor();
    const first = page.locator("#jobs tr").first();
    await first.getByText("done").waitFor();
    await first.getByText("1 charged").waitFor();

    await page.getByRole("button", { name: /^Specify/ }).click();
    const specification = page.locator("#jobs tr").filter({ hasText: "Specification" });
    await specification.getByText("3 charged").waitFor();
    await specification.getByRole("button", { name: /^Show/ }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("heading", { level: 1 }).first().waitFor();
    await picture(page, "specification");
    await dialog.getByRole("button", { name: "Close" }).click();

    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("Not signed in.").waitFor();
    assert.deepEqual(complaints, []);
  });

  it("shows which jobs of a burst wait, and cancels one", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 360, height: 1000 });
    await page.goto(slow.edge.url);
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByText(/left 50 ·/).waitFor();
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByText(/used 1 · reserved 0 · left 49 ·/).waitFor();

    // 49 are left, so one of the 50 is refused.
    await page.getByRole("button", { name: "Submit 50" }).click();
    await page.getByText("49 accepted, 1 refused").waitFor();
    await page.getByRole("alert").getByText("Quota Exceeded").waitFor();
    await page.getByText("waiting for your turn").first().waitFor();
    await page.locator("#jobs").getByText("running").first().waitFor();
    await picture(page, "burst");
    assert.equal(
      await page.evaluate(
        "document.getElementById('jobs-scroll').scrollWidth - document.getElementById('jobs-scroll').clientWidth",
      ),
      0,
      "no button is cut off at 360 px",
    );
    // The newest job is the last in line, so it still waits.
    const last = page.locator("#jobs tr").first();
    await last.getByRole("button", { name: /^Cancel/ }).click();
    await last.getByText("cancelled").waitFor();
    await page.getByText(/used 49 · reserved 0 · left 1 ·/).waitFor({ timeout: 60_000 });
    await picture(page, "after-the-burst");
    assert.deepEqual(
      complaints.filter((words) => !words.includes("429")),
      [],
    );
  });

  it("updates every row of a burst from events over one connection", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 1200, height: 1000 });
    const asked: string[] = [];
    page.on("request", (request) => asked.push(`${request.method()} ${new URL(request.url()).pathname}`));
    await page.goto(slower.edge.url);
    await page.getByRole("button", { name: "Enterprise" }).click();
    await page.getByText("Plan: Enterprise").waitFor();
    await page.evaluate(keepStates);
    await page.getByRole("button", { name: "Submit 50" }).click();
    await page.getByText("50 accepted, 0 refused").waitFor();
    await page.getByText(/used 50 · reserved 0/).waitFor({ timeout: 60_000 });
    const states = (await page.evaluate("states")) as Record<string, string[]>;
    assert.equal(Object.keys(states).length, 50);
    for (const [job, said] of Object.entries(states)) {
      assert.deepEqual(said.slice(-2), ["running", "done"], `${job}: ${said.join(", ")}`);
      assert.ok(
        said.slice(0, -2).every((words) => words.startsWith("waiting for")),
        `${job}: ${said.join(", ")}`,
      );
    }
    const parked = Object.values(states).filter((said) => said[0] === "waiting for your turn");
    assert.ok(parked.length >= 40, `${parked.length} have waited for their turn`);
    assert.equal(asked.filter((request) => request === "GET /api/jobs/events").length, 1);
    assert.deepEqual(
      asked.filter((request) => request === "GET /api/jobs" || /^GET .api.jobs.\d/.test(request)),
      [],
      "nothing is polled",
    );
    assert.deepEqual(complaints, []);
  });

  it("shows a Pro job overtaking two hundred Free ones", async (t) => {
    const { page, complaints } = await openPage(t, {
      address: someAddress(),
      width: 1920,
      height: 1200,
      colorScheme: "dark",
    });
    await page.goto(slower.edge.url);
    await page.getByRole("button", { name: "Run it" }).click();
    const passed = page.getByText(/^Pro: done \d+ ms after it was submitted, past \d+ Free jobs that were before it$/);
    await passed.waitFor({ timeout: 60_000 });
    await picture(page, "pro-passes");
    const words = (await passed.textContent()) ?? "";
    const [milliseconds = Infinity, ahead = 0] = [...words.matchAll(/\d+/g)].map(Number);
    assert.ok(ahead > 100, words);
    assert.ok(milliseconds < 5000, words);
    // The picture shows the same.
    await page
      .getByRole("img", { name: "In the order of submission: 200 of 200 Free jobs, then the Pro job as number 201" })
      .waitFor();
    await page
      .getByRole("img", { name: new RegExp(`^In the order of completion: the Pro job as number ${201 - ahead},`) })
      .waitFor();
    await page.getByText("Free: 200 of 200 done").waitFor({ timeout: 120_000 });
    await picture(page, "river");
    assert.deepEqual(complaints, []);
  });

  it("is in Korean for a Korean browser", async (t) => {
    const { page } = await openPage(t, { address: someAddress(), locale: "ko-KR", width: 360, height: 740 });
    await page.goto(stack.edge.url);
    await page.getByRole("heading", { name: "파일에서 테스트 찾기" }).waitFor();
    await page.getByRole("row", { name: /^우선/ }).first().waitFor();
    assert.equal(await page.locator("html").getAttribute("lang"), "ko");
    await picture(page, "korean");
    await page.getByLabel("언어").selectOption("en");
    await page.getByRole("heading", { name: "Find the tests in a file" }).waitFor();
    assert.equal(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"), 0);
  });

  it("says when the server does not answer, and recovers", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByRole("rowheader", { name: "priority" }).first().waitFor();
    await page.context().setOffline(true);
    await page.getByLabel("Or take a sample").selectOption("Go");
    await page.getByRole("button", { name: "Analyse" }).click();
    await page.getByRole("alert").getByText("The server cannot be reached").waitFor();
    await page.context().setOffline(false);
    await page.getByRole("button", { name: "Analyse" }).click();
    await page.getByText("3 tests found").waitFor();
  });
});
