import { developmentToken, isFinished, listJobs, readJob, Refusal, submit, type SourceFile } from "./api.ts";
import { element, make } from "./elements.ts";
import { showProblem } from "./notice.ts";
import { largeFile } from "./samples.ts";
import { t } from "./text.ts";

/** Five users with 40 jobs each: 200 of them, and within what a Free plan allows in a month. */
const users = 5;
const each = 40;

const start = element("demo-start", HTMLButtonElement);
const place = element("demo", HTMLElement);

start.addEventListener("click", () => void run());

async function run(): Promise<void> {
  start.disabled = true;
  const bar = make("progress");
  const free = make("p");
  const pro = make("p", "", "pro");
  bar.max = users * each;
  bar.value = 0;
  place.replaceChildren(free, bar, pro);
  const showFree = (done: number): void => {
    bar.value = done;
    bar.setAttribute("aria-label", free.textContent ?? "");
    free.textContent = t("demoFree", { done, total: users * each });
  };
  showFree(0);
  pro.textContent = t("demoPro", { state: t("demoNotYet") });
  try {
    const tokens = await Promise.all(Array.from({ length: users }, () => developmentToken("free")));
    const proToken = await developmentToken("pro");
    // Small files are analysed faster than a browser can submit them, and no line would form.
    const files = [largeFile()];
    const flood = tokens.flatMap((token) => Array.from({ length: each }, () => submit("analysis", { files }, token)));
    const passing = Promise.all(flood).then(() => passOne(proToken, tokens, files, pro));
    let failed = false;
    passing.catch(() => (failed = true));
    for (let done = 0; done < users * each && !failed; ) {
      await pause(400);
      done = await finishedOf(tokens);
      showFree(done);
    }
    await passing;
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) place.replaceChildren(make("p", t("noSignIn")));
    else showProblem(error);
  } finally {
    start.disabled = false;
  }
}

/** One job of a Pro user's, and how long it took past what was in line before it. */
async function passOne(token: string, tokens: string[], files: SourceFile[], words: HTMLElement): Promise<void> {
  const submittedAt = performance.now();
  const { job } = await submit("analysis", { files }, token);
  while (!isFinished(await readJob(job.id, token))) await pause(25);
  const ms = Math.round(performance.now() - submittedAt);
  const ahead = users * each - (await finishedOf(tokens));
  words.textContent = t("demoPro", { state: t("demoProDone", { ms, ahead }) });
  words.classList.add("passed");
}

async function finishedOf(tokens: string[]): Promise<number> {
  const lists = await Promise.all(tokens.map((token) => listJobs(each, token)));
  return lists.flat().filter(isFinished).length;
}

const pause = (milliseconds: number): Promise<void> => new Promise((done) => setTimeout(done, milliseconds));
