import type { Accepted, Given, Job, Usage } from "./generated/api.d.ts";

export type { Job, LaneState, Lanes, Quota, Usage } from "./generated/api.d.ts";

export interface TestCase {
  file: string;
  name: string;
  line: number;
}

export interface AnalysisOutput {
  tests: TestCase[];
  count: number;
  frameworks: string[];
}

export interface SpecviewOutput {
  markdown: string;
  count: number;
}

export function isFinished(job: Job): boolean {
  return job.status !== "queued" && job.status !== "running";
}

export interface SourceFile {
  path: string;
  content: string;
}

/** An answer that is not what was asked for, in the words of its problem details. */
export class Refusal extends Error {
  readonly status: number;
  readonly title: string;
  readonly headers: Headers;

  constructor(status: number, title: string, detail: string, headers: Headers) {
    super(detail);
    this.status = status;
    this.title = title;
    this.headers = headers;
  }
}

interface Asking {
  method?: string;
  body?: unknown;
  /** Instead of the signed-in user's, which the cookie holds. */
  token?: string | undefined;
  /** What an anonymous submitter proves itself with. */
  jobToken?: string | undefined;
}

async function ask<T>(
  path: string,
  { method = "GET", body, token, jobToken }: Asking = {},
): Promise<{ body: T; headers: Headers }> {
  const headers = new Headers();
  if (body !== undefined) headers.set("Content-Type", "application/json");
  if (token !== undefined) headers.set("Authorization", `Bearer ${token}`);
  if (jobToken !== undefined) headers.set("Weir-Job-Token", jobToken);
  const response = await fetch(path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  const answer: unknown = await response.json().catch(() => undefined);
  if (response.ok && answer !== undefined) return { body: answer as T, headers: response.headers };
  const problem = (answer ?? {}) as { title?: string; detail?: string };
  throw new Refusal(
    response.status,
    problem.title ?? `HTTP ${response.status}`,
    problem.detail ?? response.statusText,
    response.headers,
  );
}

export async function submit(
  service: string,
  args: unknown,
  token?: string,
): Promise<{ job: Job; jobToken: string | undefined; headers: Headers }> {
  const { body, headers } = await ask<Accepted>(`/api/jobs/${service}`, { method: "POST", body: args, token });
  return { job: body.job, jobToken: body.token, headers };
}

/** Reads a job, as the signed-in user unless told as whom. */
export async function readJob(id: number, as: Pick<Asking, "token" | "jobToken"> = {}): Promise<Job> {
  return (await ask<Job>(`/api/jobs/${id}`, as)).body;
}

export async function listJobs(limit: number, token?: string): Promise<Job[]> {
  return (await ask<Job[]>(`/api/jobs?limit=${limit}`, { token })).body;
}

export async function cancelJob(id: number): Promise<Job> {
  return (await ask<Job>(`/api/jobs/${id}`, { method: "DELETE" })).body;
}

export async function readUsage(token?: string): Promise<Usage> {
  return (await ask<Usage>("/api/usage", { token })).body;
}

/** A token for a new user of a tier; only a server in development mode gives one out. */
export async function developmentToken(tier: string): Promise<string> {
  return (await ask<Given>("/api/dev/token", { method: "POST", body: { tier } })).body.token;
}
