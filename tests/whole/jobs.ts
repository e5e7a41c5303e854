import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import type { Accepted, Job, Quota, Usage } from "../../www/src/generated/api.d.ts";

/** The usage of a signed-in user of the shipped catalogue, which has no nulls. */
type PlanUsage = Usage & { period: NonNullable<Usage["period"]>; analysis: Quota; specview: Quota };

/** A client of the API, at an address, with or without a user's token. */
export class Caller {
  #send: (path: string, init?: RequestInit) => Promise<Response>;
  #token: string | undefined;
  /** The tokens of its anonymous jobs. */
  #jobTokens = new Map<string, string>();

  constructor(send: (path: string, init?: RequestInit) => Promise<Response>, token?: string) {
    this.#send = send;
    this.#token = token;
  }

  request(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    const jobToken = this.#jobTokens.get(path.split("/")[3] ?? "");
    if (jobToken) headers.set("Weir-Job-Token", jobToken);
    if (this.#token) headers.set("Authorization", `Bearer ${this.#token}`);
    return this.#send(path, { ...init, headers });
  }

  async submit(service: string, args: unknown, headers: Record<string, string> = {}): Promise<Response> {
    const response = await this.request(`/api/jobs/${service}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers },
      body: JSON.stringify(args),
    });
    if (response.status === 202) {
      const { job, token } = (await response.clone().json()) as Accepted;
      if (token) this.#jobTokens.set(String(job.id), token);
    }
    return response;
  }

  /** Submits, and fails unless the submission is accepted. */
  async accepted(service: string, args: unknown): Promise<Accepted> {
    const response = await this.submit(service, args);
    const text = await response.text();
    assert.equal(response.status, 202, text);
    return JSON.parse(text) as Accepted;
  }

  async get<T>(path: string): Promise<T> {
    const response = await this.request(path);
    const text = await response.text();
    assert.equal(response.status, 200, `${path}: ${text}`);
    return JSON.parse(text) as T;
  }

  async usage(): Promise<PlanUsage> {
    const usage = await this.get<Usage>("/api/usage");
    assert.ok(usage.period && usage.analysis && usage.specview, JSON.stringify(usage));
    return usage as PlanUsage;
  }

  /** Waits until a job has ended. */
  async finished(id: number, within = 30_000): Promise<Job> {
    const deadline = Date.now() + within;
    for (;;) {
      const job = await this.get<Job>(`/api/jobs/${id}`);
      if (["completed", "failed", "cancelled"].includes(job.status)) return job;
      assert.ok(Date.now() < deadline, `job ${id} has not ended after ${within / 1000} s: ${JSON.stringify(job)}`);
      await sleep(100);
    }
  }
}

/** On Cloudflare, a failed fetch throws and the edge returns 502. The local runtime returns 500 instead. */
export async function statusOnCloudflare(response: Response): Promise<number> {
  const madeUp = response.status === 500 && (await response.text()).startsWith("TypeError: fetch failed");
  return madeUp ? 502 : response.status;
}
