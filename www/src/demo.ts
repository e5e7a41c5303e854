import { developmentToken, isFinished, listJobs, readJob, Refusal, submit } from "./api.ts";
import { element, make } from "./elements.ts";
import { showProblem } from "./notice.ts";
import { samples } from "./samples.ts";
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
    const files = Object.values(samples);
    await Promise.all(tokens.flatMap((token) => Array.from({ length: each }, () => submit("analysis", { files }, token))));

    const submittedAt = performance.now();
    const { job } = await submit("analysis", { files }, proToken);
    const ahead = users * each - (await finishedOf(tokens));
    pro.textContent = t("demoPro", { state: t("demoProWaiting", { ahead }) });
    const passing = (async () => {
      while (!isFinished(await readJob(job.id, proToken))) await pause(25);
      const took = Math.round(performance.now() - submittedAt);
      const left = users * each - (await finishedOf(tokens));
      pro.textContent = t("demoPro", { state: t("demoProDone", { ms: took, ahead: left }) });
      pro.classList.add("passed");
    })();
    for (let done = 0; done < users * each; ) {
      done = await finishedOf(tokens);
      showFree(done);
      await pause(400);
    }
    await passing;
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) place.replaceChildren(make("p", t("noSignIn")));
    else showProblem(error);
  } finally {
    start.disabled = false;
  }
}

async function finishedOf(tokens: string[]): Promise<number> {
  const lists = await Promise.all(tokens.map((token) => listJobs(each, token)));
  return lists.flat().filter(isFinished).length;
}

const pause = (milliseconds: number): Promise<void> => new Promise((done) => setTimeout(done, milliseconds));
