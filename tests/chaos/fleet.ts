import { join } from "node:path";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";

/** Builds the Go fleet into this folder. Returns `undefined` if Go is missing or cannot build it, except in CI. */
export async function buildFleet(folder: string): Promise<string | undefined> {
  const program = join(folder, "fleet");
  const built = await attempt("go", ["build", "-o", program, "./example"], { cwd: join(root, "clients", "go") });
  if (built.code === 0) return program;
  if (process.env.CI === "true") throw new Error(`the fleet in Go could not be built\n${built.output}`);
  return undefined;
}
