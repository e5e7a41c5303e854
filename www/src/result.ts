import type { AnalysisOutput, Job, TestCase } from "./api.ts";
import { element, make } from "./elements.ts";
import { number, onLanguage, t } from "./text.ts";

/** The languages of the analysis, which it detects by the file's extension. */
const languages = "Rust, Go, Python, JavaScript, TypeScript, Java, Kotlin, Ruby";

const status = element("status", HTMLElement);
const place = element("result", HTMLElement);

let shown: Job | undefined;
onLanguage(() => {
  if (shown) showJob(shown);
  else status.textContent = t("nothingYet");
});

export function showJob(job: Job): void {
  shown = job;
  status.textContent = describe(job);
  place.replaceChildren(...(job.status === "completed" ? outputOf(job) : []));
}

function outputOf(job: Job): HTMLElement[] {
  if (isAnalysis(job)) return testList((job.output as AnalysisOutput).tests);
  return [make("pre", JSON.stringify(job.output, undefined, 2))];
}

function isAnalysis({ output }: Job): boolean {
  return Array.isArray((output as Partial<AnalysisOutput> | null | undefined)?.tests);
}

function describe(job: Job): string {
  const { id } = job;
  switch (job.status) {
    case "queued":
      return t("jobWaiting", { id, reason: t(job.waiting_for ?? "queued") });
    case "running":
      return t("jobRunning", { id });
    case "completed": {
      if (!isAnalysis(job)) return t("jobDoneOther", { id });
      const { count = 0, frameworks = [] } = (job.output ?? {}) as Partial<AnalysisOutput>;
      if (count === 0) return t("jobDoneNone", { id, languages });
      return t(count === 1 ? "jobDoneOne" : "jobDone", {
        id,
        count: number(count),
        frameworks: frameworks.length > 0 ? ` (${frameworks.join(", ")})` : "",
      });
    }
    case "failed":
      return t("jobFailed", { id, reason: job.error?.message ?? t("noReason") });
    case "cancelled":
      return t("jobCancelled", { id });
  }
}

export function testList(tests: TestCase[]): HTMLElement[] {
  const byFile = new Map<string, TestCase[]>();
  for (const test of tests) byFile.set(test.file, [...(byFile.get(test.file) ?? []), test]);
  return [...byFile].flatMap(([file, cases]) => {
    const found = make("ul", "", "found");
    for (const test of cases) {
      const item = make("li");
      item.append(make("span", test.name), make("span", t("line", { line: test.line })));
      found.append(item);
    }
    return [make("h3", file), found];
  });
}
