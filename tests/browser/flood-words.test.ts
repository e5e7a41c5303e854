import assert from "node:assert/strict";
import { describe, it, type TestContext } from "node:test";
import type { Page, Route } from "playwright-core";
import { until } from "../harness/until.ts";
import { openPage } from "./browser.ts";
import { plainSite, servePage, site } from "./site.ts";

interface FakeJob {
  id: number;
  user: number;
  created_at: string;
  status: string;
  waiting_for: string;
  started_at?: string;
  finished_at?: string;
}

/** Answers the demonstration's requests. No job runs until the test calls `finish`. */
class Demonstration {
  readonly weir: FakeJob[] = [];
  readonly shared: FakeJob[] = [];
  /** The id under which the page submitted to the shared queue. */
  run = "";
  /** Called before each submission, with its path. A returned status refuses it. */
  onSubmission: (path: string) => Promise<number | undefined> = async () => undefined;
  /** Called before each response to a list of a user's jobs, which already has its contents. */
  onList: (user: number) => Promise<void> = async () => {};
  /** The number of other visitors' jobs at the workers of the shared queue. */
  others = 0;
  /** The number of events of the lanes. */
  events = 0;
  /** If set, this event is sent again and again. */
  lastEvent = "";
  #users = 0;

  /** The lanes with all unfinished jobs, as the server counts them. A job of each user has its slot. */
  lanes(): string {
    const unfinished = (jobs: FakeJob[]): FakeJob[] => jobs.filter(({ status }) => status === "queued");
    const service = (queued: number) => ({ parked: 0, priority: lane, default: { ...lane, queued }, scheduled: lane });
    const inSlots = new Set(unfinished(this.weir).map(({ user }) => user)).size;
    const services = { demo: service(inSlots), demo_shared: service(unfinished(this.shared).length + this.others) };
    return `retry: 300\nevent: lanes\ndata: ${JSON.stringify({ at: time(), oldest_wait_ms: 0, parked: 0, services })}\n\n`;
  }

  readonly answer = async (route: Route, path: string): Promise<void> => {
    const request = route.request();
    if (path === "/api/openapi.json")
      return route.fulfill({ json: { info: {}, paths: { "/api/dev/shared-queue": {} } } });
    if (path === "/api/lanes/events") {
      this.events++;
      return route.fulfill({ contentType: "text/event-stream", body: this.lastEvent || this.lanes() });
    }
    if (path === "/api/dev/token") return route.fulfill({ json: { token: String(this.#users++) } });
    const user = Number(request.headers().authorization?.slice("Bearer ".length));
    if (request.method() === "GET") {
      if (path === "/api/jobs") {
        const json = JSON.stringify(this.weir.filter((job) => job.user === user));
        await this.onList(user);
        return route.fulfill({ contentType: "application/json", body: json });
      }
      if (path === "/api/dev/shared-queue") return route.fulfill({ json: this.shared });
      return;
    }
    const body = request.postDataJSON();
    const status = await this.onSubmission(path);
    if (status !== undefined) return route.fulfill({ status, json: { title: "Refused by the test" } });
    if (path === "/api/dev/shared-queue") {
      this.run = body.run;
      const jobs = (body.users as number[]).map((each) => this.#create(this.shared, each));
      return route.fulfill({ json: jobs });
    }
    if (path === "/api/jobs/demo/batch") {
      const jobs = (body as unknown[]).map(() => this.#create(this.weir, user));
      return route.fulfill({ status: 202, json: { jobs } });
    }
    if (path === "/api/jobs/demo") return route.fulfill({ status: 202, json: { job: this.#create(this.weir, user) } });
  };

  #create(jobs: FakeJob[], user: number): FakeJob {
    const job = {
      id: this.weir.length + this.shared.length,
      user,
      created_at: time(),
      status: "queued",
      waiting_for: "slot",
    };
    jobs.push(job);
    return job;
  }

  begin(jobs: FakeJob[]): void {
    for (const job of jobs) Object.assign(job, { status: "running", started_at: time() });
  }

  finish(jobs: FakeJob[]): void {
    for (const job of jobs)
      if (job.status !== "completed")
        Object.assign(job, { status: "completed", started_at: time(), finished_at: time() });
  }
}

function time(): string {
  return new Date().toISOString();
}

const lane = { oldest_wait_ms: 0, paused: false, queued: 0, running: 0, lent: 0, workers: 3 };

/** Records each sentence below the buttons. */
const watchSentences = `
  window.sentences = [];
  addEventListener("DOMContentLoaded", () => {
    const sentence = document.querySelector("#flood-sentence");
    new MutationObserver(() => sentences.push(sentence.textContent)).observe(sentence, { childList: true });
  });
`;

/** Records the radii of the dots last drawn on each canvas. */
const watchDots = `
  const drawing = CanvasRenderingContext2D.prototype;
  const { clearRect, arc } = drawing;
  drawing.clearRect = function (...box) {
    this.canvas.radii = [];
    return clearRect.apply(this, box);
  };
  drawing.arc = function (x, y, r, ...angles) {
    (this.canvas.radii ??= []).push(r);
    return arc.call(this, x, y, r, ...angles);
  };
`;

/** Records the number of dashed frames last drawn on each canvas. */
const watchDashes = `
  {
    const drawing = CanvasRenderingContext2D.prototype;
    const { clearRect, setLineDash } = drawing;
    drawing.clearRect = function (...box) {
      this.canvas.dashed = 0;
      return clearRect.apply(this, box);
    };
    drawing.setLineDash = function (dash) {
      if (dash.length > 0) this.canvas.dashed++;
      return setLineDash.call(this, dash);
    };
  }
`;

/** The number of dots for jobs of others in a picture. No other dot has this radius. */
function othersIn(page: Page, stage: string): Promise<number> {
  return page.evaluate(`document.querySelector("${stage} canvas").radii.filter((r) => r === 8).length`);
}

async function open(
  t: TestContext,
  address = site,
): Promise<{ page: Page; demonstration: Demonstration; said: () => Promise<string[]> }> {
  const { page } = await openPage(t);
  page.setDefaultTimeout(10_000);
  const demonstration = new Demonstration();
  await page.addInitScript(watchSentences);
  await page.addInitScript(watchDots);
  await page.addInitScript(watchDashes);
  await servePage(page, demonstration.answer);
  await page.goto(address);
  await page.getByText("live,").waitFor();
  const said = (): Promise<string[]> => page.evaluate("sentences");
  return { page, demonstration, said };
}

async function pressJoin(page: Page): Promise<void> {
  await page.locator("#join:not([aria-disabled])").click();
}

describe("the flood's sentence", () => {
  it("does not announce the flood again when a newcomer joins", async (t) => {
    const { page, demonstration, said } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    const before = (await said()).length;
    demonstration.onSubmission = async (path) => {
      await page.waitForTimeout(path === "/api/jobs/demo" ? 400 : 200);
      return undefined;
    };
    await pressJoin(page);
    await page.getByText(/jobs were waiting when you joined/).waitFor();
    const after = (await said()).slice(before);
    assert.deepEqual(
      after.filter((words) => !/when you joined/.test(words)),
      [],
    );
  });

  it("counts the flood once the picture shows all of it", async (t) => {
    const { page, demonstration, said } = await open(t);
    let batches = 0;
    demonstration.onSubmission = async (path) => {
      await page.waitForTimeout(path === "/api/dev/shared-queue" ? 300 : 200 * batches++);
      return undefined;
    };
    await page.getByRole("button", { name: "Flood it" }).click();
    const done = "104 jobs were submitted. Now join with one.";
    await page.getByText(/Now join with one\.$/).waitFor();
    await page.waitForTimeout(1000);
    assert.deepEqual(await said(), ["Three customers submit their jobs…", done]);
    demonstration.finish(demonstration.weir.slice(0, 90));
    await page.locator("#weir-stage .done-count").getByText("90 of 104").waitFor();
    assert.equal((await said()).at(-1), done);
  });

  it("does not compare when the shared queue is nearly empty", async (t) => {
    const { page, demonstration } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    demonstration.finish(demonstration.shared.slice(0, 102));
    await page.locator("#shared-stage .done-count").getByText("102 of 104").waitFor();
    await pressJoin(page);
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    await page.waitForTimeout(500);
    demonstration.finish(demonstration.weir.slice(104));
    await page.getByText(/you finished in/).waitFor();
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 105 jobs are done.").waitFor();
    assert.doesNotMatch((await page.locator("#flood-sentence").textContent()) ?? "", /shared/);
    assert.equal(await page.locator("#flood-result strong").count(), 0);
  });

  it("submits one job of a newcomer after a failed first try", async (t) => {
    const { page, demonstration } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    demonstration.onSubmission = async (path) => (path === "/api/jobs/demo" ? 503 : undefined);
    await pressJoin(page);
    await page.getByRole("alert").waitFor();
    demonstration.onSubmission = async () => undefined;
    await pressJoin(page);
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 105 jobs are done.").waitFor();
    assert.deepEqual([demonstration.weir.length, demonstration.shared.length], [105, 105]);
  });

  it("does not show numbers before they are known, on a slow line", async (t) => {
    const { page, demonstration, said } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    await pressJoin(page);
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    // The newcomer's end is known two seconds before that of ten jobs that ended earlier.
    let isSlow = false;
    demonstration.onList = async (user) => {
      if (user !== 0) return;
      if (isSlow) await page.waitForTimeout(2000);
      else {
        demonstration.finish(demonstration.weir.filter((job) => job.user === user).slice(0, 10));
        await page.waitForTimeout(20);
        demonstration.finish(demonstration.weir.slice(104));
      }
      isSlow = true;
    };
    await page.getByText(/in 11th place\./).waitFor();
    demonstration.onList = async () => {};
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 105 jobs are done.").waitFor();
    const places = (await said()).flatMap((words) => /finished in [^,]*, in \d+\w+ place/.exec(words) ?? []);
    assert.deepEqual(new Set(places).size, 1, places.join("; "));
  });

  it("is the first one again after a failed flood", async (t) => {
    const { page, demonstration, said } = await open(t);
    demonstration.onSubmission = async (path) => (path === "/api/dev/shared-queue" ? 503 : undefined);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByRole("alert").waitFor();
    await page.waitForTimeout(1000);
    assert.match((await said()).at(-1) ?? "", /^One customer submits 100 jobs, and two others submit 2 each/);
    assert.equal(await page.locator("#weir-stage .done-count").textContent(), "");
  });

  it("does not need TLS", async (t) => {
    const { page, demonstration } = await open(t, plainSite);
    assert.equal(await page.evaluate("isSecureContext"), false);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    assert.match(demonstration.run, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    await page.getByRole("tab", { name: "API" }).click();
    await page.getByRole("button", { name: "Copy" }).click();
    await page.getByRole("button", { name: "Copied" }).waitFor();
    assert.match(
      await page.evaluate("getSelection().toString()"),
      /^curl -X POST http:\/\/weir\.test\/api\/jobs\/demo/,
    );
  });

  it("has room for a comparison, which shows what is missing", async (t) => {
    const { page, demonstration } = await open(t);
    const result = page.locator("#flood-result");
    const rows = (): Promise<string[]> => result.locator("> :not(.bar)").allTextContents();
    assert.deepEqual(await rows(), ["You, with Weir", "–", "You, shared queue", "–"]);
    const before = await result.boundingBox();
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    await pressJoin(page);
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await result.locator("strong").nth(1).waitFor();
    assert.equal((await result.boundingBox())?.height, before?.height);
  });

  it("names other jobs at the same workers, and only those", async (t) => {
    const { page, demonstration } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    await pressJoin(page);
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    const before = demonstration.events;
    await until("three events of the lanes", () => demonstration.events >= before + 3);
    const note = page.locator("#crowded");
    assert.equal(await note.textContent(), "");
    assert.equal(await othersIn(page, "#weir-stage"), 0, "another job is drawn only when there is one");
    demonstration.others = 1;
    await note.getByText("Other jobs, such as another visitor's, share these workers").waitFor();
    for (const stage of ["#weir-stage", "#shared-stage"])
      await until("a job of others at each worker", async () => (await othersIn(page, stage)) === 3);
    demonstration.others = 0;
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 105 jobs are done.").waitFor();
    assert.ok(await note.isVisible(), "the numbers include the time of other jobs");
    // The sentence may change before both pictures are drawn.
    for (const stage of ["#weir-stage", "#shared-stage"])
      await until("no job of others", async () => (await othersIn(page, stage)) === 0);
    demonstration.shared.length = 0;
    await page.getByRole("button", { name: "Flood again" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 104 jobs are done.").waitFor();
    assert.equal(await note.textContent(), "");
  });

  it("draws lent workers with dashes, and counts slots without them", async (t) => {
    const { page, demonstration } = await open(t);
    await page.getByText("Lent: a worker that would be idle").waitFor();
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    const dashed = (): Promise<number> => page.evaluate("document.querySelector('#weir-stage canvas').dashed");
    assert.equal(await dashed(), 0);
    const mine = demonstration.weir.filter(({ user }) => user === 0);
    demonstration.begin(mine.slice(0, 1));
    // A later time than the first job's.
    await page.waitForTimeout(20);
    demonstration.begin(mine.slice(1, 3));
    await until("two lent workers", async () => (await dashed()) === 2);
    assert.deepEqual(await page.locator("#weir-stage .slot-text").allTextContents(), ["1/1", "1/1", "1/1", "0/1"]);
    assert.deepEqual((await page.locator("#weir-stage .count").allTextContents())[0], "97 waiting");
    assert.equal(await page.evaluate("document.querySelector('#shared-stage canvas').dashed"), 0);
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 104 jobs are done.").waitFor();
    assert.equal(await dashed(), 0);
  });

  it("does not count own jobs as others' when the lanes are late", async (t) => {
    const { page, demonstration } = await open(t);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    demonstration.lastEvent = demonstration.lanes();
    demonstration.finish(demonstration.weir.slice(1));
    demonstration.finish(demonstration.shared.slice(1));
    await page.locator("#shared-stage .done-count").getByText("103 of 104").waitFor();
    await page.waitForTimeout(4000);
    const before = demonstration.events;
    await until("three events of the lanes", () => demonstration.events >= before + 3);
    assert.equal(await page.locator("#crowded").textContent(), "");
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 104 jobs are done.").waitFor();
  });

  it("says how much sooner the newcomer was done, until the next flood", async (t) => {
    const { page, demonstration } = await open(t);
    const claim = page.getByRole("heading", { level: 2 }).first();
    assert.match((await claim.textContent()) ?? "", /^One customer's 100 jobs/);
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    await page.locator("#join.main").waitFor();
    assert.equal(await page.locator("#flood.main").count(), 0, "one primary button");
    let go = (): void => {};
    demonstration.onSubmission = async () => {
      await new Promise<void>((done) => (go = done));
      return undefined;
    };
    await pressJoin(page);
    await page.getByRole("button", { name: "Joining…" }).waitFor();
    demonstration.onSubmission = async () => undefined;
    go();
    await page.getByText("101 jobs were waiting when you joined.").waitFor();
    demonstration.finish(demonstration.weir.slice(104));
    await page.getByText(/you finished in/).waitFor();
    // At least twice as long in the shared queue.
    const took = Number.parseFloat((await page.locator("#flood-result strong").first().textContent()) ?? "");
    await page.waitForTimeout(2000 * took + 500);
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await claim.getByText(/^With Weir, you were done \d+ × sooner\.$/).waitFor();
    await page.getByText("All 105 jobs are done.").waitFor();
    demonstration.shared.length = 0;
    await page.getByRole("button", { name: "Flood again" }).click();
    await claim.getByText("One customer's 100 jobs").waitFor();
  });

  it("admits that the queues drift apart, and only then", async (t) => {
    const { page, demonstration } = await open(t);
    const note = page.locator("#crowded");
    await page.getByRole("button", { name: "Flood it" }).click();
    await page.getByText(/Now join with one\.$/).waitFor();
    demonstration.finish(demonstration.weir.slice(0, 20));
    demonstration.finish(demonstration.shared.slice(0, 18));
    await page.locator("#weir-stage .done-count").getByText("20 of 104").waitFor();
    await page.locator("#shared-stage .done-count").getByText("18 of 104").waitFor();
    assert.equal(await note.textContent(), "");
    demonstration.finish(demonstration.weir.slice(0, 40));
    await note.getByText("One queue has finished over a tenth more jobs than the other").waitFor();
  });

  it("folds while another part of the page is in use, but not during a flood", async (t) => {
    const { page, demonstration } = await open(t);
    const stage = page.locator("#weir-stage");
    await page.getByRole("tab", { name: "Your jobs" }).click();
    await stage.waitFor({ state: "hidden" });
    await page.getByRole("tab", { name: "Try it" }).click();
    await stage.waitFor();
    await page.getByRole("tab", { name: "API" }).click();
    await page.getByRole("button", { name: "Flood it" }).click();
    await stage.waitFor();
    await page.getByText(/Now join with one\.$/).waitFor();
    await page.getByRole("tab", { name: "Your jobs" }).click();
    assert.ok(await stage.isVisible());
    demonstration.finish([...demonstration.weir, ...demonstration.shared]);
    await page.getByText("All 104 jobs are done.").waitFor();
    await page.getByRole("tab", { name: "API" }).click();
    await stage.waitFor({ state: "hidden" });
  });

  it("changes its language together with the numbers", async (t) => {
    const { page } = await open(t);
    await page.getByLabel("Language").selectOption("ko");
    await page.waitForTimeout(200);
    assert.deepEqual(new Set(await page.locator(".count").allTextContents()), new Set(["0개 대기"]));
  });
});
