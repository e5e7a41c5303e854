import { showAllowance } from "./allowance.ts";
import { isFinished, Refusal, readJob, submit } from "./api.ts";
import { analysis } from "./demonstration.ts";
import { element } from "./elements.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { pause } from "./pause.ts";
import { allowanceOf } from "./rate-limit.ts";
import { showJob } from "./result.ts";
import { filesInForm } from "./source.ts";

const form = element("form", HTMLFormElement);
const analyse = element("analyse", HTMLButtonElement);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run(analyse, analysis, () => ({ files: filesInForm() }));
});

/** Submits a job and shows its progress and result. `args` may throw a `Fault`. */
export async function run(button: HTMLButtonElement, service: string, args: () => unknown): Promise<void> {
  if (button.ariaDisabled) return;
  hideNotice();
  // Not `disabled`, which would remove the focus.
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

/** Polls at growing intervals, because an anonymous visitor has few requests and a busy lane takes time. */
async function follow(id: number, jobToken: string | undefined): Promise<void> {
  for (let wait = 150; ; wait = Math.min(wait * 1.5, 2000)) {
    await pause(wait);
    try {
      const job = await readJob(id, { jobToken });
      showJob(job);
      if (isFinished(job)) return;
    } catch (error) {
      // The job continues while the server is unavailable, which the top of the page shows.
      if (error instanceof Refusal && error.status < 500) throw error;
    }
  }
}
