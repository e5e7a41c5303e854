import { existsSync } from "node:fs";
import { attempt } from "./process.ts";
import { step } from "./progress.ts";

/** Installs these packages if this user may. The caller checks whether they are installed then. */
export async function aptInstall(title: string, packages: string[]): Promise<void> {
  if (process.getuid?.() !== 0 || (await attempt("apt-get", ["--version"])).code !== 0) return;
  await step(title, async (pulse) => {
    // At this run level, packages do not start their services.
    const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive", RUNLEVEL: "1" };
    const apt = (...args: string[]) => attempt("apt-get", args, { pulse, env, log: packages.join("-") });
    const install = ["install", "-y", "--no-install-recommends", ...packages];
    // The package lists may be missing or out of date.
    if ((await apt(...install)).code === 0) return;
    await apt("update");
    await apt(...install);
  });
}

/** Whether systemd runs, which starts the services of new packages. */
export function hasSystemd(): boolean {
  return existsSync("/run/systemd/system");
}
