import { showAllowance } from "./allowance.ts";
import { isFinished, Refusal, readJob, submit } from "./api.ts";
import { analysis } from "./demonstration.ts";
import { element } from "./elements.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { pause } from "./pool.ts";
import { allowanceOf } from "./rate-limit.ts";
import { showJob } from "./result.ts";
import { filesInForm } from "./source.ts";

const form = element("form", HTMLFormElement);
const analyse = element("analyse", HTMLButtonElement);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run(analyse, analysis, () => ({ files: filesInForm() }));
});

/** Submits a job and shows what becomes of it. `args` may throw what is wrong with them. */
export async function run(button: HTMLButtonElement, service: string, args: () => unknown): Promise<void> {
  if (button.ariaDisabled) return;
  hideNotice();
  // Not `disabled`, which would take the focus away.
  button.ariaDisabled = "true";
  try {
    const { job, jobToken, headers } = await submit(service, args());
    showAllowance(allowanceOf(headers));
    showJob(job);
    await follow(job.id, jobToken);
  } catch (error) {
    if (error instanceof Refusal) showAllowance(allowanceOf(error.headers));
    showProblem(error, button);
  } finally {
    button.ariaDisabled = null;
  }
}

/** By asking, and ever less often: an anonymous visitor has few requests, and a busy lane takes its time. */
async function follow(id: number, jobToken: string | undefined): Promise<void> {
  for (let wait = 150; ; wait = Math.min(wait * 1.5, 2000)) {
    await pause(wait);
    try {
      const job = await readJob(id, { jobToken });
      showJob(job);
      if (isFinished(job)) return;
    } catch (error) {
      // The job goes on while the server is away, which the page shows at the top.
      if (error instanceof Refusal && error.status < 500) throw error;
    }
  }
}
