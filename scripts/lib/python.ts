import { join } from "node:path";
import { cached, makeCached } from "./cache.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

const remedy = "install Python 3.10 or newer with venv (Debian: apt install python3-venv), and check the network";

export const pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"];

/**
 * The Python of an environment with this package, which is installed once per user. `what` describes the package. Call
 * this in `usingCache`.
 */
export async function pythonWith(name: string, version: string, what: string): Promise<string> {
  const entry = `${name}-${version}`;
  const environment =
    cached(entry) ??
    (await step(`installing ${what}`, (pulse) =>
      makeCached(entry, async (workshop) => {
        await run("python3", ["-m", "venv", workshop], { pulse, remedy });
        const python = join(workshop, "bin", "python");
        await run(python, [...pip, "install", `${name}==${version}`], { pulse, remedy });
      }),
    ));
  return join(environment, "bin", "python");
}
