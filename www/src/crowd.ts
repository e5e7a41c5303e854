import type { Lanes } from "./api.ts";
import { demo, demoShared } from "./demonstration.ts";
import { element } from "./elements.ts";
import type { Scene } from "./scene.ts";
import { onLanguage, t } from "./text.ts";

/** Why the two queues of the demonstration may compare badly: others share the workers, or they run at different speeds. */

/** A job may be counted as unfinished until so many milliseconds after its end: its transaction commits later. */
const commitTime = 3000;

const note = element("crowded", HTMLElement);
let isCrowded = false;
let hasDrifted = false;

onLanguage(show);

/** Whether other jobs share the workers. */
export function isShared(): boolean {
  return isCrowded;
}

/** Shows or hides the note about other jobs. */
export function showSharedNotice(now: boolean): void {
  if (isCrowded === now) return;
  isCrowded = now;
  show();
}

/** Shows or hides the note that the queues do not run at the same speed. */
export function showDriftNotice(now: boolean): void {
  if (hasDrifted === now) return;
  hasDrifted = now;
  show();
}

/**
 * Whether the lanes contain more jobs than the scenes. Parked jobs wait for no worker. Lent jobs do not count, because
 * the scenes count only jobs in slots.
 */
export function hasOthers(lanes: Lanes, weir: Scene, shared: Scene): boolean {
  const since = Date.parse(lanes.at) - commitTime;
  const own = (scene: Scene, user?: number): number =>
    scene.jobs.filter(
      (job) => (user === undefined || job.user === user) && (job.finished === undefined || job.finished > since),
    ).length;
  const atWorkers = (service: string): number => {
    const lane = lanes.services[service]?.default;
    return lane ? lane.queued + lane.running - lane.lent : 0;
  };
  const inSlots = weir.users.reduce((sum, { slots }, user) => sum + Math.min(slots, own(weir, user)), 0);
  return atWorkers(demo) > inSlots || atWorkers(demoShared) > own(shared);
}

function show(): void {
  const words = isCrowded ? t("crowded") : hasDrifted ? t("drifted") : "";
  if (note.textContent !== words) note.textContent = words;
}
