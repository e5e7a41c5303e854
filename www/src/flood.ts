import {
  developmentToken,
  isFinished,
  type Job,
  listJobs,
  listShared,
  Refusal,
  type SharedJob,
  submit,
  submitBatch,
  submitShared,
} from "./api.ts";
import { openApi } from "./api-document.ts";
import { hasOthers, isShared, showDriftNotice, showSharedNotice } from "./crowd.ts";
import { demo, demoShared } from "./demonstration.ts";
import { element } from "./elements.ts";
import { firstLanes, lanes, markAlive, onLanes } from "./live.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { pause } from "./pause.ts";
import { Picture } from "./picture.ts";
import { Scene, type SceneJob } from "./scene.ts";
import { compare, Scoreboard, setSentence } from "./scoreboard.ts";
import { onChoice } from "./tabs.ts";
import { onLanguage, t } from "./text.ts";
import { randomUuid } from "./uuid.ts";
import { comparisonAt, hasDrifted, type Newcomer, sentenceAt, type Tracks } from "./verdict.ts";

/** The number of jobs of each user: one floods, two are quiet. All are on the Free plan, with a burst of all workers. */
const floods = [100, 2, 2] as const;
const you = floods.length;
/** The pictures lag at least this many milliseconds behind. Then most events are known in time. */
const lag = 450;
/** An event may be visible this many milliseconds after its time, because its transaction commits later. */
const commitTime = 100;
const pollEvery = 150;

const start = element("flood", HTMLButtonElement);
const join = element("join", HTMLButtonElement);
const kind = element("picture-kind", HTMLElement);
const card = element("picture", HTMLElement);

/** A picture and its numbers in words. */
class Board {
  readonly picture: Picture;
  readonly #scoreboard: Scoreboard;

  constructor(stage: HTMLElement) {
    this.picture = new Picture(stage, [...floods, 1], isShared);
    this.#scoreboard = new Scoreboard(stage);
  }

  show(scene: Scene, clock: () => number, onMoment: (at: number) => void): void {
    this.picture.show(scene, clock, (at) => {
      this.#scoreboard.count(scene, at);
      onMoment(at);
    });
  }
}

const boards = {
  weir: new Board(element("weir-stage", HTMLElement)),
  shared: new Board(element("shared-stage", HTMLElement)),
};
let run: Run | undefined;
/** Whether this server runs the demonstration; otherwise the recording is shown. */
let canRun = true;

start.addEventListener("click", () => void begin().catch((error) => showProblem(error, start)));
join.addEventListener("click", () => void newcomer().catch((error) => showProblem(error, join)));
onLanes((now) => {
  if (!run || run.submitting || run.joining || run.isOver) return;
  if (!hasOthers(now, run.weir, run.shared)) return;
  showSharedNotice(true);
  drawAgain();
});
// The pictures fill a screen, and stand above the other parts.
onChoice((part) => {
  if (!run || run.isOver) card.classList.toggle("folded", part !== "try");
});
onLanguage(() => {
  showButtons();
  // The numbers are written with each drawing.
  drawAgain();
});
showButtons();
showIdle();

/** Checks what this server supports. A server without the demonstration shows the recording, once automatically. */
export async function preparePicture(): Promise<void> {
  const document = await openApi();
  await Promise.race([firstLanes, pause(2000)]);
  const services = lanes()?.services;
  const hasServices = services === undefined || (demo in services && demoShared in services);
  canRun = hasServices && document.paths["/api/dev/shared-queue"] !== undefined;
  showButtons();
  if (!canRun) await replay();
}

function drawAgain(): void {
  for (const board of Object.values(boards)) board.picture.wake();
}

/** Shows the pictures before a flood. */
function showIdle(): void {
  setSentence(() => t("floodIdle"));
  for (const [name, board] of Object.entries(boards))
    board.show(
      emptyScene(name === "shared"),
      () => 0,
      () => {},
    );
}

function emptyScene(shared: boolean, workers = demoWorkers()): Scene {
  const letters = ["A", "B", "C", "★"];
  return new Scene(
    letters.map((letter) => ({ letter, slots: 1 })),
    workers,
    shared,
  );
}

function demoWorkers(): number {
  return lanes()?.services[demo]?.default.workers || 3;
}

/** One flood, with Weir and in the shared queue, and the newcomer who joins it. */
class Run implements Tracks {
  readonly id = randomUuid();
  readonly weir = emptyScene(false);
  readonly shared = emptyScene(true);
  /** Indexed like the users of the scene. */
  readonly tokens: (string | undefined)[] = [];
  readonly recorded = false;
  newcomer: Newcomer | undefined;
  submitting = true;
  /** Whether the newcomer's jobs are being submitted. */
  joining = false;
  /** The maximum lag of the server's clock behind the browser's. */
  #skew = Infinity;
  #shownUntil = 0;
  /** When the newest known list of each queue was requested, by the browser's clock. */
  readonly #listed = new Map<number | "shared", number>();

  takeJobs(user: number, jobs: Job[]): void {
    let isNew = this.weir.take(jobs.map((job) => sceneJob(user, job)));
    // The number of slots is the server's setting. It is at least the highest number of jobs in slots at once.
    const used = jobs.filter((job) => !isFinished(job) && !job.lent && job.waiting_for !== "slot").length;
    const owner = this.weir.users[user];
    if (owner && owner.slots < used) {
      owner.slots = used;
      isNew = true;
    }
    this.#take(this.weir, isNew, boards.weir);
  }

  takeShared(jobs: SharedJob[]): void {
    const isNew = this.shared.take(
      jobs.map(({ id, user, created_at, started_at, finished_at }) => ({
        id,
        user,
        created: Date.parse(created_at),
        started: time(started_at),
        finished: time(finished_at),
      })),
    );
    this.#take(this.shared, isNew, boards.shared);
  }

  #take(scene: Scene, isNew: boolean, board: Board): void {
    markAlive();
    if (scene.jobs.length > 0) this.#skew = Math.min(this.#skew, Date.now() - scene.newest);
    if (isNew) board.picture.wake();
  }

  /** Records that all events of a queue before this time, by the browser's clock, are known. */
  listed(queue: number | "shared", requested: number): void {
    this.#listed.set(queue, requested);
  }

  /**
   * The moment that the pictures show, by the server's clock. It never decreases. All events until then are known, so
   * a number that was shown does not change.
   */
  readonly moment = (): number => {
    if (this.#skew === Infinity) return this.#shownUntil;
    const known = [...this.#listed]
      .filter(([queue]) => (queue === "shared" ? this.shared.unfinished() : this.weir.unfinished(queue)))
      .map(([, requested]) => requested - commitTime);
    this.#shownUntil = Math.max(this.#shownUntil, Math.min(Date.now() - lag, ...known) - this.#skew);
    return this.#shownUntil;
  };

  get isOver(): boolean {
    const at = this.moment();
    return !this.submitting && !this.joining && this.weir.isOver(at) && this.shared.isOver(at);
  }
}

function time(text: string | null | undefined): number | undefined {
  return text ? Date.parse(text) : undefined;
}

function sceneJob(user: number, job: Job): SceneJob {
  return {
    id: job.id,
    user,
    created: Date.parse(job.created_at),
    started: job.status === "queued" ? undefined : time(job.started_at),
    finished: isFinished(job) ? time(job.finished_at) : undefined,
  };
}

async function begin(): Promise<void> {
  if (run && !run.isOver) return;
  hideNotice();
  if (!canRun) return replay();
  // The lanes list the server's services.
  await Promise.race([firstLanes, pause(2000)]);
  if (run && !run.isOver) return;
  const mine = open();
  try {
    const tokens = await Promise.all(floods.map(() => developmentToken("free", demoWorkers())));
    // One user after the other, and to both queues at once: neither queue starts with an advantage on a busy server.
    for (const [user, jobs] of floods.entries()) {
      const token = tokens[user] ?? "";
      const args = Array.from({ length: jobs }, () => ({}));
      mine.tokens[user] = token;
      for (const queue of [user, "shared"] as const) mine.listed(queue, Date.now());
      const [weir, shared] = await Promise.all([
        submitBatch(demo, args, token),
        submitShared(mine.id, Array<number>(jobs).fill(user), token),
      ]);
      mine.takeJobs(user, weir);
      mine.takeShared(shared);
    }
  } catch (error) {
    run = undefined;
    if (error instanceof Refusal && error.status === 404) {
      // The edge does not forward development routes.
      canRun = false;
      void replay().catch((error) => showProblem(error, start));
    } else {
      showIdle();
      showProblem(error, start);
    }
  } finally {
    mine.submitting = false;
    showButtons();
  }
}

async function newcomer(): Promise<void> {
  const mine = run;
  if (!mine || !canJoin()) return;
  hideNotice();
  mine.joining = true;
  showButtons();
  try {
    const token = await developmentToken("free", demoWorkers());
    mine.tokens[you] = token;
    mine.listed(you, Date.now());
    const { job } = await submit(demo, {}, token);
    mine.takeJobs(you, [job]);
    mine.newcomer = { weir: job.id, shared: undefined };
    // Afterwards, so that a retry after a refused submission adds no second job here.
    const jobs = await submitShared(mine.id, [you], token);
    mine.takeShared(jobs);
    mine.newcomer = { weir: job.id, shared: jobs[0]?.id };
  } catch (error) {
    showProblem(error, join);
  } finally {
    mine.joining = false;
    show(mine, mine.moment());
  }
}

/** A newcomer joins once the flood is submitted, and while some of its jobs remain. */
function canJoin(): boolean {
  return run !== undefined && !run.submitting && !run.joining && run.newcomer === undefined && !run.isOver;
}

/** Starts new pictures and follows the jobs until the pictures show all of them as done. */
function open(): Run {
  const mine = new Run();
  run = mine;
  card.classList.remove("folded");
  showSharedNotice(false);
  showDriftNotice(false);
  for (const name of ["weir", "shared"] as const)
    boards[name].show(mine[name], mine.moment, () => show(mine, mine.moment()));
  void follow(mine);
  return mine;
}

/** Not `disabled`, which would remove the focus from the pressed button. */
function showButtons(): void {
  const words = canRun ? (run?.isOver ? "floodAgain" : "floodIt") : "playRecording";
  if (start.textContent !== t(words)) start.textContent = t(words);
  start.ariaDisabled = run && !run.isOver ? "true" : null;
  join.ariaDisabled = canJoin() ? null : "true";
  const joinWords = run?.joining ? "joining" : "joinIn";
  if (join.textContent !== t(joinWords)) join.textContent = t(joinWords);
  // The next step is the primary button.
  join.classList.toggle("main", canJoin());
  start.classList.toggle("main", !canJoin());
  join.classList.toggle("gone", !canRun);
  kind.hidden = canRun;
}

async function follow(mine: Run): Promise<void> {
  while (run === mine && !mine.isOver) {
    await pause(pollEvery);
    // One at a time: a browser opens six connections to a server, and other requests need theirs.
    for (const [user, token] of mine.tokens.entries()) {
      if (token === undefined || !mine.weir.unfinished(user)) continue;
      const requested = Date.now();
      await listJobs(100, token).then(
        (jobs) => {
          mine.takeJobs(user, jobs);
          mine.listed(user, requested);
        },
        () => {},
      );
    }
    if (!mine.shared.unfinished()) continue;
    const requested = Date.now();
    await listShared(mine.id, mine.tokens[0]).then(
      (jobs) => {
        mine.takeShared(jobs);
        mine.listed("shared", requested);
      },
      () => {},
    );
  }
  if (run === mine) show(mine, mine.moment());
}

/** Updates the sentence and the bars to match the pictures. */
function show(tracks: Tracks, at: number): void {
  const landed = (track: "weir" | "shared", id: number): boolean => boards[track].picture.landed(id);
  setSentence(() => sentenceAt(tracks, at, landed));
  compare(comparisonAt(tracks, at, landed));
  if (hasDrifted(tracks, at)) showDriftNotice(true);
  showButtons();
}

/** Plays the recording of a real flood. */
async function replay(): Promise<void> {
  const { recording } = await import("./recording.ts");
  const scene = (name: "weir" | "shared"): Scene => {
    const empty = emptyScene(name === "shared", recording.workers);
    empty.take(
      recording[name].map(([user, created, started, finished], id) => ({ id, user, created, started, finished })),
    );
    return empty;
  };
  const [weir, shared] = [scene("weir"), scene("shared")];
  const mine = (of: Scene): number => of.jobs.find(({ user }) => user === you)?.id ?? -1;
  const tracks: Tracks = {
    weir,
    shared,
    newcomer: { weir: mine(weir), shared: mine(shared) },
    submitting: false,
    recorded: true,
  };
  const began = Date.now();
  const end = Math.max(weir.newest, shared.newest);
  const clock = (): number => Math.min(Date.now() - began, end);
  boards.weir.show(weir, clock, (at) => show(tracks, at));
  boards.shared.show(shared, clock, (at) => show(tracks, at));
}
