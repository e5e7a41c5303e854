import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { cached, makeCached, usingCache } from "../../scripts/lib/cache.ts";
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
export function goProgram(module: string, version: string, folder: string): Promise<string> {
  const name = `${module.split("/")[2]}-${version}`;
  return usingCache(async () => {
    const built =
      cached(name) ??
      (await makeCached(name, async (workshop) => {
        const env = { ...process.env, GOBIN: workshop, GOFLAGS: "" };
        await run("go", ["install", `${module}/${folder}@v${version}`], { env, remedy: "check the network" });
      }));
    return join(built, folder.split("/").at(-1) ?? "");
  });
}
