import { type AnalysisOutput, cancelJob, isFinished, type Job, readJob, type SpecviewOutput, submit } from "./api.ts";
import { element, make, makeButton } from "./elements.ts";
import { showMarkdown } from "./markdown.ts";
import { showProblem } from "./notice.ts";
import { testList } from "./result.ts";
import { onUsage, refreshUsage } from "./session.ts";
import { Stream } from "./stream.ts";
import { language, onLanguage, t } from "./text.ts";

const body = element("jobs", HTMLElement);
const none = element("no-jobs", HTMLElement);
const table = element("jobs-table", HTMLElement);
const scroll = element("jobs-scroll", HTMLElement);
const dialog = element("output", HTMLDialogElement);
const outputTitle = element("output-title", HTMLElement);
const outputBody = element("output-body", HTMLElement);

const shownAtMost = 200;

const jobs = new Map<number, Job>();
const rows = new Map<number, HTMLTableRowElement>();
/** Tells of every change of every job, over one connection: a browser opens no more than six to a server. */
let stream: Stream | undefined;

element("output-close", HTMLButtonElement).addEventListener("click", () => dialog.close());
onLanguage(() => {
  for (const job of jobs.values()) showRow(job);
});
onUsage((usage) => {
  if ((usage !== undefined) === (stream !== undefined)) return;
  clear();
  if (usage)
    stream = new Stream("/api/jobs/events", { jobs: begin, job: change, gone: ({ id }: { id: number }) => drop(id) });
});

function clear(): void {
  stream?.close();
  stream = undefined;
  for (const id of [...jobs.keys()]) drop(id);
}

/** The newest jobs as they are, when the stream opens and whenever it opens again. */
function begin(newest: Job[]): void {
  for (const job of newest.reverse()) take(job);
  // It may have opened again without the token, which has expired; then these are nobody's.
  void refreshUsage().catch(() => {});
}

function change(job: Job): void {
  take(job);
  refreshUsageSoon();
}

function take(job: Job): void {
  const before = jobs.get(job.id);
  // The answer to a request may come after the event that tells what happened next.
  if (before && isFinished(before) && !isFinished(job)) return;
  if (JSON.stringify(before) === JSON.stringify(job)) return;
  jobs.set(job.id, job);
  showRow(job);
}

let usageTimer: ReturnType<typeof setTimeout> | undefined;

/** Much may happen within a moment, and one answer tells of all. */
function refreshUsageSoon(): void {
  if (usageTimer !== undefined) return;
  usageTimer = setTimeout(() => {
    usageTimer = undefined;
    void refreshUsage().catch(() => {});
  }, 400);
}

function showRow(job: Job): void {
  const row = rows.get(job.id) ?? addRow(job.id);
  const words = t(job.status === "queued" && job.waiting_for ? job.waiting_for : job.status);
  const stateCell = make("td");
  stateCell.append(make("span", words, `badge ${job.status}`), make("small", job.error?.message ?? ""));
  const cost = isFinished(job) ? t("costCharged", { n: job.charged }) : t("costReserved", { n: job.reserved });
  const actions = make("td", "", "job-actions");
  actions.append(...actionsFor(job));
  const service = job.service === "analysis" || job.service === "specview" ? t(job.service) : job.service;
  const cells = [make("td", String(job.id)), make("td", service), stateCell, make("td", cost), actions];
  if (row.cells.length === 0) row.append(...cells);
  const hadFocus = row.contains(document.activeElement);
  for (const [n, cell] of cells.entries()) {
    // A button that stays keeps the focus, also for when a dialog that it has opened is closed.
    if (row.cells[n]?.innerHTML !== cell.innerHTML) row.cells[n]?.replaceWith(cell);
  }
  // The keyboard focus stays in this row.
  if (hadFocus && !row.contains(document.activeElement))
    (actions.querySelector("button") ?? scroll).focus({ preventScroll: true });
}

/** A row in its place: the newest job is on top, in whatever order they are told. */
function addRow(id: number): HTMLTableRowElement {
  const row = make("tr");
  const older = [...rows.keys()].filter((other) => other < id);
  const next = rows.get(Math.max(...older));
  rows.set(id, row);
  body.insertBefore(row, next ?? null);
  while (rows.size > shownAtMost) drop(Math.min(...rows.keys()));
  showEmptiness();
  return row;
}

function actionsFor(job: Job): HTMLElement[] {
  const named = (button: HTMLButtonElement): HTMLButtonElement => {
    button.setAttribute("aria-label", `${button.textContent} ${job.id}`);
    return button;
  };
  if (!isFinished(job))
    return [named(makeButton(t("cancel"), () => void act(async () => take(await cancelJob(job.id))), "small"))];
  if (job.status !== "completed") return [];
  const show = named(makeButton(t("show"), () => void showOutput(job).catch(showProblem), "small"));
  if (job.service !== "analysis") return [show];
  const specify = named(
    makeButton(
      t("specify"),
      () => void act(async () => take((await submit("specview", { analysis_id: job.id, language })).job)),
      "small",
    ),
  );
  return [show, specify];
}

async function act(action: () => Promise<void>): Promise<void> {
  try {
    await action();
    await refreshUsage();
  } catch (error) {
    showProblem(error);
  }
}

async function showOutput(listed: Job): Promise<void> {
  // Lists have no outputs.
  const job = listed.output ? listed : await readJob(listed.id);
  outputTitle.textContent = `${t("job")} ${job.id}`;
  if (job.service === "specview") await showMarkdown(outputBody, (job.output as SpecviewOutput).markdown);
  else outputBody.replaceChildren(...testList((job.output as AnalysisOutput).tests));
  dialog.showModal();
}

function drop(id: number): void {
  rows.get(id)?.remove();
  rows.delete(id);
  jobs.delete(id);
  showEmptiness();
}

function showEmptiness(): void {
  none.hidden = rows.size > 0;
  table.hidden = rows.size === 0;
}
