import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { cached } from "../../scripts/lib/cache.ts";
import { run } from "../../scripts/lib/process.ts";

/** Why a test that builds this Go program cannot run. */
export function skipWithoutGo(): string | false {
  try {
    execFileSync("go", ["version"], { stdio: "ignore" });
    return false;
  } catch {
    return "needs Go";
  }
}

/** Installs a Go program once per user, and returns its path. */
export async function goProgram(module: string, version: string, folder: string): Promise<string> {
  const built = await cached(`${module.split("/")[2]}-${version}`, async (workshop) => {
    const env = { ...process.env, GOBIN: workshop, GOFLAGS: "" };
    await run("go", ["install", `${module}/${folder}@v${version}`], { env, remedy: "check the network" });
  });
  return join(built, folder.split("/").at(-1) ?? "");
}
