import { showAllowance } from "./allowance.ts";
import { isFinished, Refusal, readJob, submit } from "./api.ts";
import { element } from "./elements.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { allowanceOf } from "./rate-limit.ts";
import { showJob } from "./result.ts";
import { filesInForm } from "./source.ts";

const form = element("form", HTMLFormElement);
const analyse = element("analyse", HTMLButtonElement);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run();
});

async function run(): Promise<void> {
  hideNotice();
  analyse.disabled = true;
  try {
    const { job, jobToken, headers } = await submit("analysis", { files: filesInForm() });
    showAllowance(allowanceOf(headers));
    showJob(job);
    await follow(job.id, jobToken);
  } catch (error) {
    if (error instanceof Refusal) showAllowance(allowanceOf(error.headers));
    showProblem(error);
  } finally {
    analyse.disabled = false;
  }
}

/** By asking, and ever less often: an anonymous visitor has few requests, and a busy lane takes its time. */
async function follow(id: number, jobToken: string | undefined): Promise<void> {
  for (let wait = 150; ; wait = Math.min(wait * 1.5, 2000)) {
    await new Promise((done) => setTimeout(done, wait));
    const job = await readJob(id, { jobToken });
    showJob(job);
    if (isFinished(job)) return;
  }
}
