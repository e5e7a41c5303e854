import { isFinished, type Job } from "./api.ts";
import { analysis, specview } from "./demonstration.ts";
import { element, make } from "./elements.ts";
import { lanes } from "./live.ts";
import { inSeconds } from "./scoreboard.ts";
import { number, serviceName, t } from "./text.ts";

export type Action = "cancel" | "show" | "specify";
export type Actions = Record<Action, (id: number) => void>;

const body = element("jobs", HTMLTableSectionElement);
const none = element("no-jobs", HTMLElement);
const table = element("jobs-table", HTMLElement);
const scroll = element("jobs-scroll", HTMLElement);

let actions: Actions | undefined;
let latest: Job[] = [];
let held = false;

body.addEventListener("click", (event) => {
  const button = (event.target as HTMLElement).closest("button");
  if (button) actions?.[button.dataset.action as Action](Number(button.dataset.job));
});
// A button must not switch to another job while it is being pressed.
body.addEventListener("pointerdown", () => (held = true));
for (const name of ["pointerup", "pointercancel"])
  addEventListener(name, () => {
    if (!held) return;
    // After the resulting click.
    setTimeout(() => {
      held = false;
      draw();
    });
  });

/** Running jobs first, then waiting ones in queue order, then finished ones, the newest first. */
export function inOrder(jobs: Job[]): Job[] {
  const rank = (job: Job): number => {
    if (job.status === "running") return 0;
    if (isFinished(job)) return 4;
    return { worker: 1, slot: 2, retry: 3, schedule: 3 }[job.waiting_for ?? "slot"];
  };
  const end = (job: Job): number => Date.parse(job.finished_at ?? job.created_at);
  return jobs
    .map((job) => ({ job, rank: rank(job), end: end(job) }))
    .sort((a, b) => a.rank - b.rank || (a.rank === 4 ? b.end - a.end || b.job.id - a.job.id : a.job.id - b.job.id))
    .map(({ job }) => job);
}

/**
 * Writes the rows. A row is a position in the list, not a job. When a job moves, the text of rows changes and elements
 * stay in place, so the page does not jump.
 */
export function showJobs(jobs: Job[], toDo: Actions): void {
  actions = toDo;
  latest = jobs;
  if (!held) draw();
}

function draw(): void {
  const jobs = latest;
  const focused = document.activeElement instanceof HTMLElement ? { ...document.activeElement.dataset } : {};
  const hadFocus = body.contains(document.activeElement);
  const places = new Map<string, number>();
  for (const [n, job] of inOrder(jobs).entries()) {
    const place = job.waiting_for === "slot" ? (places.get(job.service) ?? 0) + 1 : undefined;
    if (place) places.set(job.service, place);
    write(body.rows[n] ?? body.insertRow(), job, place);
  }
  while (body.rows.length > jobs.length) body.deleteRow(-1);
  none.hidden = jobs.length > 0;
  table.hidden = jobs.length === 0;
  if (hadFocus) keepFocus(focused.job, focused.action);
}

/** Keeps the focus on the job, wherever its row is now. */
function keepFocus(job: string | undefined, action: string | undefined): void {
  const active = document.activeElement;
  if (active instanceof HTMLElement && active.dataset.job === job && active.dataset.action === action) return;
  const buttons = [...body.querySelectorAll<HTMLElement>(`button[data-job="${job}"]`)];
  const next = buttons.find((button) => button.dataset.action === action) ?? buttons[0] ?? scroll;
  next.focus({ preventScroll: true });
}

function write(row: HTMLTableRowElement, job: Job, place: number | undefined): void {
  row.dataset.job = String(job.id);
  const state = make("td");
  const words = t(job.status === "queued" && job.waiting_for ? job.waiting_for : job.status);
  state.append(make("span", words, `badge ${job.status}`), ...bar(job), make("small", details(job, place).join(" · ")));
  const cost = isFinished(job)
    ? t("costCharged", { n: number(job.charged) })
    : t("costReserved", { n: number(job.reserved) });
  const buttons = make("td", "", "job-actions");
  buttons.append(...actionsFor(job).map((action) => button(job, action)));
  const cells = [make("td", String(job.id)), make("td", serviceName(job.service)), state, make("td", cost), buttons];
  for (const [n, cell] of cells.entries()) {
    const before = row.cells[n];
    // A button that stays keeps the focus, including after the dialog that it opened is closed.
    if (!before) row.append(cell);
    else if (before.innerHTML !== cell.innerHTML) before.replaceWith(cell);
  }
}

/** The job's progress, if it reports any. */
function bar(job: Job): HTMLProgressElement[] {
  if (!job.progress) return [];
  const made = make("progress");
  made.max = 1;
  made.value = job.progress.fraction;
  made.ariaLabel = t("progressOf", { id: job.id });
  return [made];
}

function details(job: Job, place: number | undefined): string[] {
  const { started_at: started, finished_at: finished, created_at: created, error } = job;
  const time = (from: string, to: string): string => inSeconds(Math.max(0, Date.parse(to) - Date.parse(from)) / 1000);
  const parts: string[] = [];
  if (place) parts.push(t("placeInQueue", { n: place }));
  if (job.progress) parts.push(t("progressSoFar", { percent: Math.floor(job.progress.fraction * 100) }));
  if (job.progress?.message) parts.push(job.progress.message);
  if (started && job.status !== "queued") parts.push(t("waited", { time: time(created, started) }));
  if (started && finished) parts.push(t("took", { time: time(started, finished) }));
  if (error) parts.push(error.message);
  return parts;
}

function actionsFor(job: Job): Action[] {
  if (!isFinished(job)) return ["cancel"];
  if (job.status !== "completed") return [];
  return job.service === analysis && lanes()?.services[specview] ? ["show", "specify"] : ["show"];
}

function button(job: Job, action: Action): HTMLButtonElement {
  const made = make("button", t(action), "small");
  made.type = "button";
  made.dataset.job = String(job.id);
  made.dataset.action = action;
  made.ariaLabel = t("actionOn", { action: t(action), id: job.id });
  return made;
}
