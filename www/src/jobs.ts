import { cancelJob, isFinished, type Job, listJobs, submit } from "./api.ts";
import { specview } from "./demonstration.ts";
import { element } from "./elements.ts";
import { showJobs } from "./job-table.ts";
import { showProblem } from "./notice.ts";
import { showOutput } from "./output.ts";
import { onUsage, refreshUsage } from "./session.ts";
import { Stream } from "./stream.ts";
import { language, onLanguage } from "./text.ts";

/** The maximum number of finished jobs; the oldest are dropped. Unfinished jobs are always kept. */
const finishedAtMost = 500;
const pageSize = 100;
const table = element("jobs-table", HTMLElement);

const jobs = new Map<number, Job>();
/** Streams every change of every job over one connection, because a browser opens no more than six to a server. */
let stream: Stream | undefined;
let drawing = false;

onLanguage(show);
onUsage((usage) => {
  if ((usage !== undefined) === (stream !== undefined)) return;
  clear();
  if (usage)
    stream = new Stream("/api/jobs/events", {
      jobs: (newest: Job[]) => void begin(newest).catch(showProblem),
      job: change,
      gone: ({ id }: { id: number }) => {
        jobs.delete(id);
        show();
      },
    });
});

function clear(): void {
  stream?.close();
  stream = undefined;
  jobs.clear();
  show();
}

/** The current newest jobs, each time the stream opens. */
async function begin(newest: Job[]): Promise<void> {
  const opened = stream;
  for (const job of newest) take(job);
  // The stream may have reopened after the token expired. Then these jobs are not the user's.
  void refreshUsage().catch(() => {});
  // A burst must not hide older unfinished jobs.
  const oldest = Math.min(...[...jobs.values()].filter((job) => !isFinished(job)).map((job) => job.id));
  let page = newest;
  while (page.length === pageSize && jobs.size < 2 * finishedAtMost) {
    const last = page.at(-1);
    if (!last || (isFinished(last) && oldest >= last.id)) break;
    page = await listJobs(pageSize, undefined, last.id);
    if (stream !== opened) return;
    for (const job of page) take(job);
  }
}

function change(job: Job): void {
  take(job);
  void refreshUsage().catch(() => {});
}

function take(job: Job): void {
  const before = jobs.get(job.id);
  // A response may arrive after the event of a later change.
  if (before && isFinished(before) && !isFinished(job)) return;
  jobs.set(job.id, job);
  show();
}

/** Batches changes in quick succession into one update. */
function show(): void {
  if (drawing) return;
  drawing = true;
  setTimeout(() => {
    drawing = false;
    const finished = [...jobs.values()].filter(isFinished).sort((a, b) => b.id - a.id);
    for (const job of finished.slice(finishedAtMost)) jobs.delete(job.id);
    showJobs([...jobs.values()], {
      cancel: (id) => void act(async () => take(await cancelJob(id))),
      specify: (id) => void act(async () => take((await submit(specview, { analysis_id: id, language })).job)),
      show: (id) => {
        const job = jobs.get(id);
        if (job) void showOutput(job).catch((error) => showProblem(error, table));
      },
    });
  }, 60);
}

async function act(action: () => Promise<void>): Promise<void> {
  try {
    await action();
    await refreshUsage();
  } catch (error) {
    showProblem(error, table);
  }
}
