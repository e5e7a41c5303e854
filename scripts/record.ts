import { randomUUID } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { AcceptedBatch, Given, Job, SharedJob } from "../www/src/generated/api.d.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { root } from "./lib/paths.ts";
import { host, portFrom } from "./lib/ports.ts";
import { say } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";

// Records a flood of the running development stack, with Weir and in one shared queue. A server without development
// routes shows the recording on its page.

/** As in www/src/flood.ts. */
const floods = [100, 2, 2];
const you = floods.length;
const workers = 3;
/** When the newcomer joins, in milliseconds after the flood. */
const joinAfter = 2500;

interface Times {
  user: number;
  created_at: string;
  started_at?: string | null;
  finished_at?: string | null;
}

await runMain(async () => {
  const api = `http://${host}:${(await liveRun())?.edgePort ?? portFrom("WEIR_EDGE_PORT", 8787)}/api`;
  const ask = async <T>(path: string, token?: string, body?: unknown): Promise<T> => {
    const response = await fetch(api + path, {
      method: body === undefined ? "GET" : "POST",
      headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      body: body === undefined ? null : JSON.stringify(body),
    });
    if (response.ok) return (await response.json()) as T;
    throw new Failure(`${path} returned ${response.status}: ${await response.text()}`, "start the stack: npm start");
  };
  const newUser = async (): Promise<string> =>
    (await ask<Given>("/dev/token", undefined, { plan: "free", burst: workers })).token;
  const tokens = await Promise.all([...floods, 1].map(newUser));
  const run = randomUUID();
  const submitShared = (users: number[]): Promise<unknown> => ask("/dev/shared-queue", tokens[0], { run, users });

  for (const [user, count] of floods.entries()) {
    const args = Array.from({ length: count }, () => ({}));
    const shared = submitShared(Array<number>(count).fill(user));
    await Promise.all([ask<AcceptedBatch>("/jobs/demo/batch", tokens[user], args), shared]);
  }
  await sleep(joinAfter);
  await Promise.all([ask("/jobs/demo", tokens[you], {}), submitShared([you])]);

  for (;;) {
    const lists = await Promise.all(tokens.map((token) => ask<Job[]>("/jobs?limit=100", token)));
    const weir = lists.flatMap((list, user) => list.map((job) => ({ ...job, user }))).sort((a, b) => a.id - b.id);
    const lost = weir.find(({ status }) => status === "failed" || status === "cancelled");
    if (lost)
      throw new Failure(
        `job ${lost.id} is ${lost.status}: ${lost.error?.message}`,
        "see why in .weir/logs, and record again",
      );
    const shared = await ask<SharedJob[]>(`/dev/shared-queue?run=${run}`, tokens[0]);
    if ([...weir, ...shared].some(({ finished_at }) => !finished_at)) {
      await sleep(500);
      continue;
    }
    const start = Math.min(...[...weir, ...shared].map(({ created_at }) => Date.parse(created_at)));
    const since = (time: string | null | undefined): number => Date.parse(time ?? "") - start;
    const rows = (jobs: Times[]): number[][] =>
      jobs.map((job) => [job.user, since(job.created_at), since(job.started_at), since(job.finished_at)]);
    const path = join(root, "www", "recording.json");
    await writeFile(path, `${JSON.stringify({ workers, weir: rows(weir), shared: rows(shared) })}\n`);
    say(`recorded ${weir.length} jobs twice in ${path}`);
    return 0;
  }
});
