import { cancelJob, isFinished, listJobs, submit, type AnalysisOutput, type Job, type SpecviewOutput } from "./api.ts";
import { element, make, makeButton } from "./elements.ts";
import { showMarkdown } from "./markdown.ts";
import { showProblem } from "./notice.ts";
import { testList } from "./result.ts";
import { isSignedIn, onUsage, refreshUsage } from "./session.ts";
import { Stream } from "./stream.ts";
import { language, onLanguage, t } from "./text.ts";

const body = element("jobs", HTMLElement);
const none = element("no-jobs", HTMLElement);
const table = element("jobs-table", HTMLElement);
const dialog = element("output", HTMLDialogElement);
const outputTitle = element("output-title", HTMLElement);
const outputBody = element("output-body", HTMLElement);

/** How many jobs are followed at once: over HTTP/1.1 a browser opens no more than six connections to a server. */
const followedAtMost = 2;
const listed = 60;

const jobs = new Map<number, Job>();
const rows = new Map<number, HTMLTableRowElement>();
const followed = new Map<number, Stream<Job>>();
let beat: ReturnType<typeof setTimeout> | undefined;
let wasSignedIn = false;

element("output-close", HTMLButtonElement).addEventListener("click", () => dialog.close());
onLanguage(() => {
  for (const job of jobs.values()) showRow(job);
});
onUsage((usage) => {
  const now = usage !== undefined;
  if (now === wasSignedIn) return;
  wasSignedIn = now;
  clear();
  if (now) void refreshJobs().catch(showProblem);
});

function clear(): void {
  clearTimeout(beat);
  for (const stream of followed.values()) stream.close();
  followed.clear();
  jobs.clear();
  rows.clear();
  body.replaceChildren();
  showEmptiness();
}

/** Reads the list anew. The jobs that come next are followed closely, the others with every reading of the list. */
export async function refreshJobs(): Promise<void> {
  clearTimeout(beat);
  if (!isSignedIn()) return;
  try {
    for (const job of (await listJobs(listed)).reverse()) take(job);
  } finally {
    beat = setTimeout(() => void refreshJobs().catch(() => {}), unfinished().length > 0 ? 1500 : 15_000);
  }
  follow();
}

function unfinished(): Job[] {
  return [...jobs.values()].filter((job) => !isFinished(job)).sort((a, b) => a.id - b.id);
}

function follow(): void {
  for (const job of unfinished()) {
    if (followed.size >= followedAtMost) return;
    if (followed.has(job.id)) continue;
    followed.set(job.id, new Stream<Job>(`/api/jobs/${job.id}/events`, "job", take));
  }
}

function take(job: Job): void {
  const before = jobs.get(job.id);
  if (before && isFinished(before)) return;
  jobs.set(job.id, job);
  if (JSON.stringify(before) !== JSON.stringify(job)) showRow(job);
  if (!isFinished(job)) return;
  followed.get(job.id)?.close();
  followed.delete(job.id);
  if (before) {
    follow();
    refreshUsageSoon();
  }
}

let usageTimer: ReturnType<typeof setTimeout> | undefined;

/** Many jobs may end within a moment, and one answer tells of all. */
function refreshUsageSoon(): void {
  usageTimer ??= setTimeout(() => {
    usageTimer = undefined;
    void refreshUsage().catch(() => {});
  }, 400);
}

function showRow(job: Job): void {
  let row = rows.get(job.id);
  if (!row) {
    row = make("tr");
    rows.set(job.id, row);
    body.prepend(row);
    while (rows.size > 200) dropOldest();
    showEmptiness();
  }
  const words = t(job.status === "queued" && job.waiting_for ? job.waiting_for : job.status);
  const stateCell = make("td");
  stateCell.append(make("span", words, `badge ${job.status}`), make("small", job.error?.message ?? ""));
  const cost = isFinished(job) ? t("costCharged", { n: job.charged }) : t("costReserved", { n: job.reserved });
  const actions = make("td", "", "job-actions");
  actions.append(...actionsFor(job));
  const service = job.service === "analysis" || job.service === "specview" ? t(job.service) : job.service;
  row.replaceChildren(make("td", String(job.id)), make("td", service), stateCell, make("td", cost), actions);
}

function actionsFor(job: Job): HTMLElement[] {
  const named = (button: HTMLButtonElement): HTMLButtonElement => {
    button.setAttribute("aria-label", `${button.textContent} ${job.id}`);
    return button;
  };
  if (!isFinished(job)) return [named(makeButton(t("cancel"), () => void act(async () => take(await cancelJob(job.id))), "small"))];
  if (job.status !== "completed" || !job.output) return [];
  const show = named(makeButton(t("show"), () => void showOutput(job).catch(showProblem), "small"));
  if (job.service !== "analysis") return [show];
  const specify = named(
    makeButton(t("specify"), () => void act(async () => take((await submit("specview", { analysis_id: job.id, language })).job)), "small"),
  );
  return [show, specify];
}

async function act(action: () => Promise<void>): Promise<void> {
  try {
    await action();
    await Promise.all([refreshUsage(), refreshJobs()]);
  } catch (error) {
    showProblem(error);
  }
}

async function showOutput(job: Job): Promise<void> {
  outputTitle.textContent = `${t("job")} ${job.id}`;
  if (job.service === "specview") await showMarkdown(outputBody, (job.output as SpecviewOutput).markdown);
  else outputBody.replaceChildren(...testList((job.output as AnalysisOutput).tests));
  dialog.showModal();
}

function dropOldest(): void {
  const oldest = Math.min(...rows.keys());
  rows.get(oldest)?.remove();
  rows.delete(oldest);
  jobs.delete(oldest);
}

function showEmptiness(): void {
  none.hidden = rows.size > 0;
  table.hidden = rows.size === 0;
}
