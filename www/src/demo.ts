import { developmentToken, isFinished, type Job, listJobs, Refusal, readJob, type SourceFile, submit } from "./api.ts";
import { element } from "./elements.ts";
import { showProblem } from "./notice.ts";
import { Race } from "./race.ts";
import { largeFile } from "./samples.ts";
import { onLanguage, t } from "./text.ts";

/** Five users with 40 jobs each: 200 of them, and within what a Free plan allows in a month. */
const users = 5;
const each = 40;
const total = users * each;

const start = element("demo-start", HTMLButtonElement);
const freeWords = element("demo-free", HTMLElement);
const proWords = element("demo-pro", HTMLElement);
const race = new Race(total);

let free = 0;
/** What is said of the Pro job, in whatever language the page has by then. */
let pro = (): string => t("demoNotYet");

start.addEventListener("click", () => void run());
onLanguage(say);
say();

function say(): void {
  freeWords.textContent = t("demoFree", { done: free, total });
  const words = t("demoPro", { state: pro() });
  // It is read out when it is written, so only when it is another.
  if (proWords.textContent !== words) proWords.textContent = words;
  race.relabel();
}

async function run(): Promise<void> {
  start.disabled = true;
  free = 0;
  pro = () => t("demoNotYet");
  proWords.classList.remove("passed");
  race.clear();
  say();
  try {
    const tokens = await Promise.all(Array.from({ length: users }, () => developmentToken("free")));
    const proToken = await developmentToken("pro");
    // Small files are analysed faster than a browser can submit them, and no line would form.
    const files = [largeFile()];
    const flood = tokens.flatMap((token) =>
      Array.from({ length: each }, async () => {
        await submit("analysis", { files }, token);
        race.submitted();
      }),
    );
    let passed: Job | undefined;
    let failed = false;
    const passing = Promise.all(flood).then(async () => {
      passed = await passOne(proToken, files);
    });
    passing.catch(() => (failed = true));
    while (free < total && !failed) {
      await pause(300);
      const done = await finishedOf(tokens);
      free = done.length;
      race.finished(free, passed && before(passed, done));
      say();
      if (passed) tellPassing(passed, before(passed, done));
    }
    await passing;
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) proWords.textContent = t("noSignIn");
    else showProblem(error);
  } finally {
    start.disabled = false;
  }
}

/** One job of a Pro user's, from its submission to its end. */
async function passOne(token: string, files: SourceFile[]): Promise<Job> {
  const { job } = await submit("analysis", { files }, token);
  race.proSubmitted();
  pro = () => t("demoProGoing", { total: total + 1 });
  say();
  for (;;) {
    const now = await readJob(job.id, { token });
    if (isFinished(now)) return now;
    await pause(50);
  }
}

function tellPassing(job: Job, earlier: number): void {
  if (proWords.classList.contains("passed")) return;
  proWords.classList.add("passed");
  const ms = Date.parse(job.finished_at ?? "") - Date.parse(job.created_at);
  pro = () => t("demoProDone", { ms, ahead: total - earlier });
  say();
}

/** How many were done before it. */
function before(job: Job, done: Job[]): number {
  return done.filter((other) => Date.parse(other.finished_at ?? "") < Date.parse(job.finished_at ?? "")).length;
}

async function finishedOf(tokens: string[]): Promise<Job[]> {
  const lists = await Promise.all(tokens.map((token) => listJobs(each, token)));
  return lists.flat().filter(isFinished);
}

const pause = (milliseconds: number): Promise<void> => new Promise((done) => setTimeout(done, milliseconds));
