import { developmentToken, isFinished, type Job, listJobs, Refusal, submit } from "./api.ts";
import { openApi } from "./api-document.ts";
import { analysis, demo } from "./demonstration.ts";
import { element } from "./elements.ts";
import { firstLanes, heard, lanes } from "./live.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { Picture } from "./picture.ts";
import { Pool, pause } from "./pool.ts";
import { Scene, type SceneJob } from "./scene.ts";
import { conclude, count, inSeconds, tell } from "./scoreboard.ts";
import { onLanguage, t } from "./text.ts";

/** How many jobs each of the flooding users submits. All are on the Free plan, which allows 50 a month. */
const floods = [50, 34, 20] as const;
const you = floods.length;
/** The picture is this much behind, so that what has happened in between is known and can be shown in its order. */
const lag = 450;
const pollEvery = 150;
/** A browser opens six connections to a server. The streams and the looking need theirs. */
const submitters = 3;

const start = element("flood", HTMLButtonElement);
const join = element("join", HTMLButtonElement);
const kind = element("picture-kind", HTMLElement);

const picture = new Picture([...floods, 1]);
let run: Run | undefined;
/** Whether real users can be had; else what was recorded is shown. */
let canRun = true;

start.addEventListener("click", () => void begin());
join.addEventListener("click", () => void newcomer());
onLanguage(name);
name();
tell(() => t("floodIdle"));
picture.show(
  emptyScene(),
  () => 0,
  () => {},
);

/** Finds out what this server allows. One without development tokens gets the recording, once by itself. */
export async function preparePicture(): Promise<void> {
  const document = await openApi();
  await Promise.race([firstLanes, pause(2000)]);
  const isOurs = lanes() === undefined || demoService() !== undefined;
  canRun = isOurs && document.paths["/api/dev/token"] !== undefined;
  name();
  if (!canRun) await replay();
}

function name(): void {
  start.textContent = t(canRun ? "floodIt" : "playRecording");
  join.classList.toggle("gone", !canRun);
  kind.hidden = canRun;
}

function emptyScene(workers = demoWorkers()): Scene {
  const letters = ["A", "B", "C", "★"];
  return new Scene(
    letters.map((letter) => ({ letter, turns: 1 })),
    workers,
  );
}

/** The service that takes what the flood sends; another product's catalogue has none. */
function demoService(): string | undefined {
  return [demo, analysis].find((name) => lanes()?.services[name]);
}

function demoWorkers(): number {
  return lanes()?.services[demoService() ?? ""]?.default.workers || 3;
}

/** One flood and whoever joins it. */
class Run {
  readonly scene = emptyScene();
  readonly service = demoService() ?? "";
  /** By the place of the user in the scene. */
  readonly tokens: (string | undefined)[] = [];
  /** The newcomer's job that is not told of yet; -1 until it is known which that is. */
  joined: number | undefined;
  submitting: boolean;
  /** How far the server's clock is behind ours, at most. */
  #skew = Infinity;
  #shownUntil = 0;

  constructor(what: { floods: boolean }) {
    this.submitting = what.floods;
    if (!what.floods) this.joined = -1;
  }

  take(user: number, jobs: Job[]): void {
    let isNew = this.scene.take(jobs.map((job) => sceneJob(user, job)));
    // How many turns a user has is the server's setting; as many as are seen to be taken at once.
    const taken = jobs.filter((job) => !isFinished(job) && job.waiting_for !== "slot").length;
    const whose = this.scene.users[user];
    if (whose && whose.turns < taken) {
      whose.turns = taken;
      isNew = true;
    }
    heard();
    if (this.scene.jobs.length > 0) this.#skew = Math.min(this.#skew, Date.now() - this.scene.newest);
    if (isNew) picture.wake();
  }

  /** The moment that the picture shows, by the server's clock. It never goes back. */
  readonly moment = (): number => {
    if (this.#skew !== Infinity) this.#shownUntil = Math.max(this.#shownUntil, Date.now() - this.#skew - lag);
    return this.#shownUntil;
  };

  get isOver(): boolean {
    return (
      !this.submitting && this.joined === undefined && this.tokens.every((_, user) => !this.scene.unfinished(user))
    );
  }
}

function sceneJob(user: number, job: Job): SceneJob {
  const time = (text: string | null | undefined): number | undefined => (text ? Date.parse(text) : undefined);
  return {
    id: job.id,
    user,
    created: Date.parse(job.created_at),
    started: job.status === "queued" ? undefined : time(job.started_at),
    finished: time(job.finished_at),
  };
}

async function begin(): Promise<void> {
  if (run && !run.isOver) return;
  hideNotice();
  conclude(undefined);
  if (!canRun) return replay();
  // They tell which services there are.
  await Promise.race([firstLanes, pause(2000)]);
  if (run && !run.isOver) return;
  const mine = open({ floods: true });
  tell(() => t("floodStarts"));
  try {
    const pool = new Pool(submitters);
    await Promise.all(
      floods.map(async (_, user) => {
        mine.tokens[user] = await developmentToken("free");
      }),
    );
    // All at the same time, each its next one.
    const rounds = Array.from({ length: Math.max(...floods) }, (_, n) =>
      floods.flatMap((jobs, user) => (n < jobs ? [() => submitOne(mine, user).then(() => undefined)] : [])),
    );
    const flood = rounds.flat();
    await pool.all(flood);
    const total = flood.length;
    // Who has joined already is not asked to, and what became of their job stays.
    if (mine.tokens[you] === undefined) tell(() => t("floodIsIn", { total, users: floods.length }));
  } catch (error) {
    if (mine.scene.jobs.length === 0 && error instanceof Refusal && error.status === 404) {
      // The edge lets nobody get such tokens, whatever the server behind it says.
      canRun = false;
      name();
      void replay().catch(showProblem);
    } else showProblem(error);
  } finally {
    mine.submitting = false;
    showWhetherBusy();
  }
}

async function newcomer(): Promise<void> {
  if (run?.joined !== undefined) return;
  hideNotice();
  conclude(undefined);
  const mine = run && !run.isOver ? run : open({ floods: false });
  mine.joined = -1;
  try {
    mine.tokens[you] ??= await developmentToken("free");
    mine.joined = (await submitOne(mine, you)).id;
    tell(() => t("youJoined"));
    picture.wake();
  } catch (error) {
    mine.joined = undefined;
    showProblem(error);
  }
  showWhetherBusy();
}

async function submitOne(mine: Run, user: number): Promise<Job> {
  const args =
    mine.service === "demo" ? {} : { files: [{ path: "a_test.go", content: "func TestA(t *testing.T) {}" }] };
  const { job } = await submit(mine.service, args, mine.tokens[user]);
  mine.take(user, [job]);
  return job;
}

/** Starts a new picture and follows it until all of its jobs are done. */
function open(what: { floods: boolean }): Run {
  const mine = new Run(what);
  run = mine;
  picture.show(mine.scene, mine.moment, (at) => show(mine, at));
  showWhetherBusy();
  void follow(mine);
  return mine;
}

/** Not `disabled`, which would take the focus away from the button that was pressed. */
function showWhetherBusy(): void {
  start.ariaDisabled = run && !run.isOver ? "true" : null;
  join.ariaDisabled = run?.joined !== undefined ? "true" : null;
}

async function follow(mine: Run): Promise<void> {
  while (!mine.isOver) {
    await pause(pollEvery);
    // One after the other: more at once would take the connections of those who submit.
    for (const [user, token] of mine.tokens.entries()) {
      if (token === undefined || !mine.scene.unfinished(user)) continue;
      await listJobs(100, token).then(
        (jobs) => mine.take(user, jobs),
        () => {},
      );
    }
  }
}

function show(mine: Run, at: number): void {
  count(mine.scene, at);
  const { joined } = mine;
  const job = joined === undefined ? undefined : mine.scene.job(joined);
  if (joined !== undefined && job?.finished !== undefined && job.finished <= at) {
    mine.joined = undefined;
    announce(mine.scene, joined);
  }
  showWhetherBusy();
}

/** Says what became of the newcomer's job, by the server's own times. */
function announce(scene: Scene, id: number): void {
  const verdict = scene.verdict(id);
  if (!verdict) return;
  conclude(verdict);
  tell(() =>
    t(verdict.ahead === 1 ? "youAreDoneOne" : "youAreDone", {
      time: inSeconds(verdict.seconds),
      ahead: verdict.ahead,
      shared: inSeconds(verdict.sharedSeconds),
    }),
  );
}

/** Plays what was recorded from a real flood. */
async function replay(): Promise<void> {
  const { recording } = await import("./recording.ts");
  const scene = emptyScene(recording.workers);
  scene.take(
    recording.jobs.map(([user, created, started, finished], id) => ({ id, user, created, started, finished })),
  );
  const joined = scene.jobs.find((job) => job.user === you)?.id;
  const began = Date.now();
  const end = scene.newest;
  let told = false;
  tell(() => t("recordingStarts"));
  picture.show(
    scene,
    () => Math.min(Date.now() - began, end),
    (at) => {
      count(scene, at);
      if (told || joined === undefined || (scene.job(joined)?.finished ?? Infinity) > at) return;
      told = true;
      announce(scene, joined);
    },
  );
}
