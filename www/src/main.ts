import { showAllowance } from "./allowance.ts";
import { readJob, Refusal, submitAnalysis, type AnalysisOutput, type SourceFile } from "./api.ts";
import { element } from "./elements.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { allowanceOf } from "./rate-limit.ts";
import { clearResult, showJob } from "./result.ts";
import { samples } from "./samples.ts";

const form = element("form", HTMLFormElement);
const path = element("path", HTMLInputElement);
const content = element("content", HTMLTextAreaElement);
const sample = element("sample", HTMLSelectElement);
const picker = element("picker", HTMLInputElement);
const drop = element("drop", HTMLElement);
const fileList = element("files", HTMLElement);
const analyse = element("analyse", HTMLButtonElement);

/** Files beside the one in the form, when several were dropped at once. */
let others: SourceFile[] = [];

for (const name of Object.keys(samples)) sample.append(new Option(name));

sample.addEventListener("change", () => {
  const chosen = samples[sample.value];
  if (chosen) fill([chosen]);
});

picker.addEventListener("change", () => void take(picker.files));

for (const name of ["dragover", "dragleave", "drop"] as const) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") void take(event.dataTransfer?.files);
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void submit();
});

async function take(files: FileList | null | undefined): Promise<void> {
  fill(await Promise.all([...(files ?? [])].map(async (file) => ({ path: file.name, content: await file.text() }))));
}

function fill(files: SourceFile[]): void {
  const [first, ...rest] = files;
  if (!first) return;
  path.value = first.path;
  content.value = first.content;
  others = rest;
  fileList.hidden = rest.length === 0;
  fileList.textContent = `and ${rest.map((file) => file.path).join(", ")}`;
}

async function submit(): Promise<void> {
  hideNotice();
  analyse.disabled = true;
  try {
    const { job, headers } = await submitAnalysis([{ path: path.value, content: content.value }, ...others]);
    const allowance = allowanceOf(headers);
    if (allowance) showAllowance(allowance);
    clearResult("");
    showJob(job);
    await follow(job.id);
  } catch (error) {
    if (error instanceof Refusal) {
      const allowance = allowanceOf(error.headers);
      if (allowance) showAllowance(allowance);
    }
    showProblem(error);
  } finally {
    analyse.disabled = false;
  }
}

async function follow(id: number): Promise<void> {
  for (let wait = 150; ; wait = Math.min(wait * 1.5, 2000)) {
    await new Promise((done) => setTimeout(done, wait));
    const job = await readJob<AnalysisOutput>(id);
    showJob(job);
    if (job.status !== "queued" && job.status !== "running") return;
  }
}
