import { join } from "node:path";
import { cached } from "./cache.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

const remedy = "install Python 3.10 or newer with venv (Debian: apt install python3-venv), and check the network";

export const pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"];

/**
 * The Python of an environment with this package, which is installed once per user. `what` describes the package.
 */
export async function pythonWith(name: string, version: string, what: string): Promise<string> {
  const environment = await cached(`${name}-${version}`, (folder) =>
    step(`installing ${what}`, async (pulse) => {
      // pip runs as a module of the interpreter, so that nothing depends on the folder's first name.
      await run("python3", ["-m", "venv", folder], { pulse, remedy });
      const python = join(folder, "bin", "python");
      await run(python, [...pip, "install", `${name}==${version}`], { pulse, remedy });
    }),
  );
  return join(environment, "bin", "python");
}
