import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run, Service } from "../../scripts/lib/process.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { showOnFailure } from "../harness/logs.ts";
import { until } from "../harness/until.ts";

/** Builds and starts the Go program of a folder, or of one of its files. Returns the URL that the program prints. */
export async function startGo(
  lifetime: Lifetime,
  source: { folder: string; file?: string },
  env: NodeJS.ProcessEnv = {},
): Promise<string> {
  const output = mkdtempSync(join(tmpdir(), "weir-go-"));
  whenOver(lifetime, () => rmSync(output, { recursive: true }));
  const program = join(output, "backend");
  await run("go", ["build", "-o", program, source.file ?? "."], { cwd: source.folder });
  const service = new Service("backend", program, [], { env: { ...process.env, ...env } });
  showOnFailure("the Go program", () => service.recent.join("\n"));
  whenOver(lifetime, () => service.stop());
  return until("the Go program's URL", () => /http:\S+/.exec(service.recent.join("\n"))?.[0]);
}
