import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Given, Job } from "../www/src/generated/api.d.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { root } from "./lib/paths.ts";
import { host, portFrom } from "./lib/ports.ts";
import { say } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";
import { sleep } from "./lib/sleep.ts";

// Records a flood of the running development stack, for the page of a server that gives out no development tokens.

const floods = [50, 34, 20];
const workers = 3;

await runMain(async () => {
  const api = `http://${host}:${(await liveRun())?.edgePort ?? portFrom("WEIR_EDGE_PORT", 8787)}/api`;
  const ask = async <T>(path: string, token?: string, body?: unknown): Promise<T> => {
    const response = await fetch(api + path, {
      method: body === undefined ? "GET" : "POST",
      headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      body: body === undefined ? null : JSON.stringify(body),
    });
    if (response.ok) return (await response.json()) as T;
    throw new Failure(`${path} is answered ${response.status}: ${await response.text()}`, "start the stack: npm start");
  };
  const newUser = async (): Promise<string> => (await ask<Given>("/dev/token", undefined, { tier: "free" })).token;
  const tokens = await Promise.all([...floods, 1].map(newUser));
  const submit = (user: number): Promise<unknown> => ask("/jobs/demo", tokens[user], {});

  for (let round = 0; round < Math.max(...floods); round++)
    await Promise.all(floods.map((jobs, user) => (round < jobs ? submit(user) : undefined)));
  await sleep(500);
  await submit(floods.length);

  for (;;) {
    const lists = await Promise.all(tokens.map((token) => ask<Job[]>("/jobs?limit=100", token)));
    const jobs = lists.flatMap((list, user) => list.map((job) => ({ ...job, user }))).sort((a, b) => a.id - b.id);
    const lost = jobs.find(({ status }) => status === "failed" || status === "cancelled");
    if (lost)
      throw new Failure(
        `job ${lost.id} is ${lost.status}: ${lost.error?.message}`,
        "see why in .weir/logs, and record again",
      );
    if (jobs.some((job) => job.status !== "completed")) {
      await sleep(500);
      continue;
    }
    const start = Date.parse(jobs[0]?.created_at ?? "");
    const since = (time: string | null | undefined): number => Date.parse(time ?? "") - start;
    const rows = jobs.map((job) => [job.user, since(job.created_at), since(job.started_at), since(job.finished_at)]);
    const path = join(root, "www", "recording.json");
    await writeFile(path, `${JSON.stringify({ workers, jobs: rows })}\n`);
    say(`recorded ${rows.length} jobs in ${path}`);
    return 0;
  }
});
