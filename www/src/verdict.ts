import type { Scene, SceneJob } from "./scene.ts";
import { type Comparison, inSeconds } from "./scoreboard.ts";
import { ordinal, t } from "./text.ts";

/** The conclusions of a demonstration, from the scenes that the pictures show. */

/** The newcomer's job in each queue. */
export interface Newcomer {
  weir: number;
  /** Undefined until the job is also submitted there. */
  shared: number | undefined;
}

export interface Tracks {
  weir: Scene;
  shared: Scene;
  newcomer: Newcomer | undefined;
  submitting: boolean;
  recorded: boolean;
}

/** Whether a job's dot has reached its place among the finished jobs. */
export type Landed = (track: "weir" | "shared", id: number) => boolean;

/** With fewer jobs waiting in either queue, both are about equally fast. */
const leastWaiting = 3;

/** One or two sentences about the moment that the pictures show. */
export function sentenceAt(tracks: Tracks, at: number, landed: Landed): string {
  const { weir, shared, submitting, recorded } = tracks;
  const mine = joined(tracks, at);
  if (!mine && !recorded && (submitting || !isIn(weir, at) || !isIn(shared, at))) return t("floodStarts");
  const words: string[] = [];
  const isOver = !submitting && weir.isOver(at) && shared.isOver(at);
  if (mine) {
    const values = { n: mine.waiting };
    const isOne = mine.waiting === 1;
    const outcome = landed("weir", mine.weir) ? weir.outcome(mine.weir) : undefined;
    if (outcome) {
      const finished = { ...values, time: inSeconds(outcome.seconds), place: ordinal(outcome.place) };
      words.push(t(isOne ? "youFinishedOne" : "youFinished", finished));
      const twin = mine.twin && landed("shared", mine.twin.id) ? shared.outcome(mine.twin.id) : undefined;
      if (twin) words.push(t("sharedFinished", { time: inSeconds(twin.seconds), place: ordinal(twin.place) }));
    } else words.push(t(isOne ? "youJoinedOne" : "youJoined", values));
  } else if (recorded) words.push(t("recordingStarts"));
  else if (!isOver) words.push(t("floodIsIn", { total: flood(weir).length }));
  if (isOver) words.push(t("floodOver", { total: weir.jobs.length }));
  return words.join(" ");
}

/** The newcomer's times in both queues, once the job is done with Weir; undefined while they are not conclusive. */
export function comparisonAt(tracks: Tracks, at: number, landed: Landed): Comparison | undefined {
  const { weir, shared } = tracks;
  const mine = joined(tracks, at);
  const twin = mine?.twin;
  const outcome = mine && landed("weir", mine.weir) ? weir.outcome(mine.weir) : undefined;
  if (!outcome || !twin) return undefined;
  const final = landed("shared", twin.id) ? shared.outcome(twin.id) : undefined;
  // In tenths of a second until then, so that the number is readable.
  const soFar = Math.floor(Math.max(0, Math.min(at, twin.finished ?? Infinity) - twin.created) / 100) / 10;
  return { mine: outcome.seconds, shared: final?.seconds ?? soFar, isFinal: final !== undefined };
}

/** Whether the queues run at different speeds until the newcomer is done in both, so that their times compare badly. */
export function hasDrifted({ weir, shared, newcomer, submitting }: Tracks, at: number): boolean {
  const twin = newcomer?.shared === undefined ? undefined : shared.job(newcomer.shared);
  if (submitting || (twin?.finished !== undefined && twin.finished <= at)) return false;
  const [done, doneShared] = [weir.done(at).length, shared.done(at).length];
  // As many as the workers finish at once do not count.
  return Math.abs(done - doneShared) > Math.max(weir.workers, Math.max(done, doneShared) / 10);
}

/** The jobs of all users except the newcomer, who is the last user. */
function flood({ jobs, users }: Scene): SceneJob[] {
  return jobs.filter(({ user }) => user < users.length - 1);
}

/** Whether a picture shows all jobs of the flood at a moment. */
function isIn(scene: Scene, at: number): boolean {
  return flood(scene).every(({ created }) => created <= at);
}

interface Joined {
  /** The id of the job with Weir. */
  weir: number;
  /** The number of other jobs that waited with Weir when the newcomer joined. */
  waiting: number;
  /** The job in the shared queue; undefined if too few jobs waited for a comparison. */
  twin: SceneJob | undefined;
}

/** The newcomer's jobs, once the pictures show them. */
function joined({ weir, shared, newcomer }: Tracks, at: number): Joined | undefined {
  const job = newcomer && weir.job(newcomer.weir);
  if (!job || job.created > at) return undefined;
  const waiting = weir.waitingBefore(job);
  const twin = newcomer.shared === undefined ? undefined : shared.job(newcomer.shared);
  const isComparable = twin && Math.min(waiting, shared.waitingBefore(twin)) >= leastWaiting;
  return { weir: job.id, waiting, twin: isComparable ? twin : undefined };
}
