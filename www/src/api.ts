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

export interface Job<Output> {
  id: number;
  status: "queued" | "running" | "completed" | "failed" | "cancelled";
  waiting_for: "slot" | "worker" | "retry" | "schedule" | null;
  output: Output | null;
  error: { message: string } | null;
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

export async function submitAnalysis(files: SourceFile[]): Promise<{ job: Job<AnalysisOutput>; headers: Headers }> {
  const response = await fetch("/api/jobs/analysis", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ files }),
  });
  const { job } = (await bodyOf(response)) as { job: Job<AnalysisOutput> };
  return { job, headers: response.headers };
}

export async function readJob<Output>(id: number): Promise<Job<Output>> {
  return (await bodyOf(await fetch(`/api/jobs/${id}`))) as Job<Output>;
}

async function bodyOf(response: Response): Promise<unknown> {
  const body: unknown = await response.json().catch(() => undefined);
  if (response.ok && body !== undefined) return body;
  const problem = (body ?? {}) as { title?: string; detail?: string };
  throw new Refusal(response.status, problem.title ?? `HTTP ${response.status}`, problem.detail ?? response.statusText, response.headers);
}
