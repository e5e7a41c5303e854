import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { Scene } from "../../www/src/scene.ts";

/** The user, and when the job was created, started and finished. */
type RecordedJob = [user: number, created: number, started: number, finished: number];

const recording: Record<"weir" | "shared", RecordedJob[]> = JSON.parse(
  readFileSync(join(root, "www", "recording.json"), "utf8"),
);
const users = ["A", "B", "C", "★"].map((letter) => ({ letter, slots: 1 }));

function sceneOf(jobs: RecordedJob[], workers: number, shared: boolean): Scene {
  const scene = new Scene(users, workers, shared);
  scene.take(jobs.map(([user, created, started, finished], id) => ({ id, user, created, started, finished })));
  return scene;
}

/** When a user's last job ends. */
function endOf(user: number, jobs: RecordedJob[]): number {
  return Math.max(...jobs.filter((job) => job[0] === user).map(([, , , finished]) => finished));
}

describe("the recording", () => {
  it("ends at about the same time with Weir and in the shared queue", () => {
    const [weir, shared] = [recording.weir, recording.shared].map((jobs) =>
      Math.max(...jobs.map(([, , , finished]) => finished)),
    ) as [number, number];
    assert.ok(Math.abs(weir - shared) < shared / 10, `${weir} and ${shared} ms`);
    assert.equal(endOf(0, recording.weir), weir, "customer A has the most jobs");
  });

  it("has lent workers and a newcomer who waits for one job at most", () => {
    const scene = sceneOf(recording.weir, 3, false);
    assert.ok(scene.jobs.some((job) => job.user === 0 && scene.isLent(job)));
    const mine = scene.jobs.find(({ user }) => user === 3);
    assert.ok(mine && !scene.isLent(mine));
    assert.ok((mine.started ?? Infinity) - mine.created < 350, "a job takes 250 ms");
  });
});

describe("a scene", () => {
  it("has lent jobs and none in a slot when a user runs more jobs than slots", () => {
    const jobs: RecordedJob[] = [
      [0, 0, 10, 250],
      [0, 0, 20, 260],
      [0, 0, 20, 270],
      // Starts after the first job, but while two others run.
      [0, 0, 255, 500],
      // Starts when no other job runs.
      [0, 0, 600, 800],
      [1, 0, 700, 900],
    ];
    const scene = sceneOf(jobs, 3, false);
    assert.deepEqual(
      scene.jobs.map((job) => scene.isLent(job)),
      [false, true, true, true, false, false],
    );
    const [queue] = scene.queues(100);
    assert.deepEqual([queue?.running.length, queue?.inSlot.length, queue?.waiting.length], [3, 0, 2]);
    const shared = sceneOf(jobs, 3, true);
    assert.ok(!shared.jobs.some((job) => shared.isLent(job)), "a shared queue lends nothing");
  });

  it("never shows more running jobs than workers, or a job in two places", () => {
    // With a slot for each of four users and with one queue, the fourth job waits for the end of the first.
    const jobs: RecordedJob[] = [0, 1, 2, 3].map((user) => [user, 0, 10 + user, 30 + user]);
    const crowded = [false, true].map((shared) => sceneOf(jobs, 3, shared));
    for (const scene of [...crowded, sceneOf(recording.weir, 3, false), sceneOf(recording.shared, 3, true)]) {
      for (let at = 0; at <= scene.newest; at++) {
        const queues = scene.queues(at);
        const running = queues.flatMap((queue) => queue.running);
        assert.ok(running.length <= 3, `${running.length} jobs at 3 workers after ${at} ms`);
        const placed = queues.reduce(
          (sum, { waiting, inSlot, running, done }) => sum + waiting.length + inSlot.length + running.length + done,
          0,
        );
        assert.equal(placed, scene.jobs.filter(({ created }) => created <= at).length);
      }
    }
    const [weir, shared] = crowded.map((scene) => scene.queues(20));
    assert.deepEqual(
      weir?.map(({ inSlot }) => inSlot.length),
      [0, 0, 0, 1],
    );
    assert.equal(shared?.[0]?.waiting.length, 1);
  });

  it("counts workers with other jobs only while a job waits", () => {
    // The second job waits half a second for a worker, although two of three run none of these jobs.
    const slow: RecordedJob[] = [
      [0, 0, 10, 1000],
      [1, 0, 510, 1000],
    ];
    // The second job waits for its user's only slot.
    const sameUser: RecordedJob[] = [
      [0, 0, 10, 500],
      [0, 0, 530, 900],
    ];
    for (const [jobs, workers, isShared, at, others] of [
      [slow, 3, true, 300, 2],
      [slow, 3, false, 300, 2],
      [slow, 3, true, 515, 0],
      [slow, 3, true, 50, 0],
      [sameUser, 3, false, 300, 0],
      [sameUser, 1, true, 520, 0],
    ] as const)
      assert.equal(sceneOf([...jobs], workers, isShared).othersAt(at), others, `${jobs} at ${at} ms`);
  });
});
