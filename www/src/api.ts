import type { Accepted, AcceptedBatch, Given, Job, Quota, SharedJob, Usage, WindowQuota } from "./generated/api.d.ts";

export type { Job, LaneState, Lanes, Quota, SharedJob, Usage } from "./generated/api.d.ts";

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

/** An error response: problem details (RFC 9457). */
export class Refusal extends Error {
  readonly status: number;
  readonly headers: Headers;
  /** The plan's quota in the exceeded window. */
  readonly quota: (Quota & Partial<WindowQuota>) | undefined;
  readonly policies: string[];

  constructor(status: number, headers: Headers, problem: Problem) {
    super(problem.detail ?? problem.title ?? `HTTP ${status}`);
    this.status = status;
    this.headers = headers;
    // The window with the latest reset decides.
    this.quota = problem.windows?.toSorted((a, b) => a.reset_at.localeCompare(b.reset_at)).at(-1) ?? problem.quota;
    this.policies = problem["violated-policies"] ?? [];
  }
}

interface Problem {
  title?: string;
  detail?: string;
  quota?: Quota;
  windows?: WindowQuota[];
  "violated-policies"?: string[];
}

interface Asking {
  method?: string;
  body?: unknown;
  /** Replaces the signed-in user's token, which is in the cookie. */
  token?: string | undefined;
  /** Authenticates an anonymous submitter. */
  jobToken?: string | undefined;
}

/** A request as sent. */
export interface Sent {
  method: string;
  path: string;
  headers: Headers;
  body: string | undefined;
}

const listeners: ((sent: Sent, settled: Promise<void>) => void)[] = [];

/** Called with each request; `settled` resolves when the request has a response or has failed. */
export function onRequest(listener: (sent: Sent, settled: Promise<void>) => void): void {
  listeners.push(listener);
}

/** A time limit above the duration of any response, in milliseconds. */
const longest = 60_000;

async function ask<T>(
  path: string,
  { method = "GET", body, token, jobToken }: Asking = {},
): Promise<{ body: T; headers: Headers }> {
  const headers = new Headers();
  if (body !== undefined) headers.set("Content-Type", "application/json");
  if (token !== undefined) headers.set("Authorization", `Bearer ${token}`);
  if (jobToken !== undefined) headers.set("Weir-Job-Token", jobToken);
  const sent = { method, path, headers, body: body === undefined ? undefined : JSON.stringify(body) };
  const answered = answer<T>(sent);
  const settled = answered.then(
    () => {},
    () => {},
  );
  for (const listener of listeners) listener(sent, settled);
  return answered;
}

async function answer<T>({ method, path, headers, body }: Sent): Promise<{ body: T; headers: Headers }> {
  const signal = AbortSignal.timeout(longest);
  const response = await fetch(path, { method, headers, body: body ?? null, signal });
  const answer: unknown = await response.json().catch(() => undefined);
  if (response.ok && answer !== undefined) return { body: answer as T, headers: response.headers };
  throw new Refusal(response.status, response.headers, (answer ?? {}) as Problem);
}

export async function submit(
  service: string,
  args: unknown,
  token?: string,
): Promise<{ job: Job; jobToken: string | undefined; headers: Headers }> {
  const { body, headers } = await ask<Accepted>(`/api/jobs/${service}`, { method: "POST", body: args, token });
  return { job: body.job, jobToken: body.token, headers };
}

/** Submits up to 100 jobs at once, all or none. */
export async function submitBatch(service: string, args: unknown[], token?: string): Promise<Job[]> {
  const { body } = await ask<AcceptedBatch>(`/api/jobs/${service}/batch`, { method: "POST", body: args, token });
  return body.jobs;
}

/** Submits a job of each of these users to the queue that they share. Only development servers support it. */
export async function submitShared(run: string, users: number[], token: string | undefined): Promise<SharedJob[]> {
  return (await ask<SharedJob[]>("/api/dev/shared-queue", { method: "POST", body: { run, users }, token })).body;
}

/** The jobs of one run in the shared queue. */
export async function listShared(run: string, token: string | undefined): Promise<SharedJob[]> {
  return (await ask<SharedJob[]>(`/api/dev/shared-queue?run=${run}`, { token })).body;
}

/** Reads a job as the signed-in user, or with the given token. */
export async function readJob(id: number, as: Pick<Asking, "token" | "jobToken"> = {}): Promise<Job> {
  return (await ask<Job>(`/api/jobs/${id}`, as)).body;
}

/** The newest jobs, or the newest of those before `before`. */
export async function listJobs(limit: number, token?: string, before?: number): Promise<Job[]> {
  const page = before === undefined ? "" : `&before=${before}`;
  return (await ask<Job[]>(`/api/jobs?limit=${limit}${page}`, { token })).body;
}

export async function cancelJob(id: number): Promise<Job> {
  return (await ask<Job>(`/api/jobs/${id}`, { method: "DELETE" })).body;
}

export async function readUsage(token?: string): Promise<Usage> {
  return (await ask<Usage>("/api/usage", { token })).body;
}

/** A token for a new user of a plan, with a burst or the plan's; only servers in development mode issue one. */
export async function developmentToken(plan: string, burst?: number): Promise<string> {
  return (await ask<Given>("/api/dev/token", { method: "POST", body: { plan, burst } })).body.token;
}

export async function fetchDocument<T>(path: string): Promise<T> {
  return (await ask<T>(path)).body;
}
