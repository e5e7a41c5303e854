import { type AnalysisOutput, type Job, readJob, type SpecviewOutput } from "./api.ts";
import { element, make } from "./elements.ts";
import { showMarkdown } from "./markdown.ts";
import { testList } from "./result.ts";
import { t } from "./text.ts";

const dialog = element("output", HTMLDialogElement);
const title = element("output-title", HTMLElement);
const body = element("output-body", HTMLElement);

element("output-close", HTMLButtonElement).addEventListener("click", () => dialog.close());

/** Shows a job's output: in its service's form if that is known, otherwise as JSON. */
export async function showOutput(listed: Job): Promise<void> {
  // Jobs from lists have no outputs.
  const job = listed.output ? listed : await readJob(listed.id);
  title.textContent = `${t("job")} ${job.id}`;
  const output = job.output as (Partial<AnalysisOutput> & Partial<SpecviewOutput>) | null | undefined;
  if (typeof output?.markdown === "string") await showMarkdown(body, output.markdown);
  else if (output?.tests?.length === 0) body.replaceChildren(make("p", t("noTestsFound"), "status"));
  else if (Array.isArray(output?.tests)) body.replaceChildren(...testList(output.tests));
  else body.replaceChildren(make("pre", JSON.stringify(output ?? null, null, 2)));
  dialog.showModal();
}
