import type { AnalysisOutput, Job, TestCase } from "./api.ts";
import { element, make } from "./elements.ts";

const status = element("status", HTMLElement);
const place = element("result", HTMLElement);

const waiting = { slot: "waiting for your turn", worker: "waiting for a worker", retry: "waiting to be tried again", schedule: "scheduled" };

export function showJob(job: Job<AnalysisOutput>): void {
  status.textContent = describe(job);
  if (job.status === "completed" && job.output) place.replaceChildren(...list(job.output.tests));
}

export function clearResult(words: string): void {
  status.textContent = words;
  place.replaceChildren();
}

function describe(job: Job<AnalysisOutput>): string {
  switch (job.status) {
    case "queued":
      return `Job ${job.id}: ${job.waiting_for ? waiting[job.waiting_for] : "waiting"}…`;
    case "running":
      return `Job ${job.id}: running…`;
    case "completed": {
      const { count = 0, frameworks = [] } = job.output ?? {};
      const found = count === 1 ? "1 test" : `${count} tests`;
      return `Job ${job.id}: ${found} found${frameworks.length > 0 ? ` (${frameworks.join(", ")})` : ""}.`;
    }
    case "failed":
      return `Job ${job.id} failed: ${job.error?.message ?? "no reason given"}`;
    case "cancelled":
      return `Job ${job.id} was cancelled.`;
  }
}

function list(tests: TestCase[]): HTMLElement[] {
  const byFile = new Map<string, TestCase[]>();
  for (const test of tests) byFile.set(test.file, [...(byFile.get(test.file) ?? []), test]);
  return [...byFile].flatMap(([file, cases]) => {
    const found = make("ul", "", "found");
    for (const test of cases) {
      const item = make("li");
      item.append(make("span", test.name), make("span", `line ${test.line}`));
      found.append(item);
    }
    return [make("h3", file), found];
  });
}
