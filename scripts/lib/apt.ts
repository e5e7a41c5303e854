import { existsSync } from "node:fs";
import { attempt } from "./process.ts";
import { type Pulse, step } from "./progress.ts";

async function hasApt(): Promise<boolean> {
  return process.platform === "linux" && (await attempt("apt-get", ["--version"])).code === 0;
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** Updates the package lists if this user may. After a failure, installing a missing package fails. */
async function aptUpdate(pulse: Pulse): Promise<void> {
  if (isRoot()) await attempt("apt-get", ["update"], { pulse, log: "apt-update" });
}

/** Installs these packages if this user may. The caller checks whether they are installed then. */
export async function aptInstall(title: string, packages: string[]): Promise<void> {
  if (!isRoot() || !(await hasApt())) return;
  await step(title, async (pulse) => {
    const install = () =>
      attempt("apt-get", ["install", "-y", "--no-install-recommends", ...packages], {
        pulse,
        log: packages.join("-"),
        // At this run level, packages do not start their services.
        env: { ...process.env, DEBIAN_FRONTEND: "noninteractive", RUNLEVEL: "1" },
      });
    // The package lists may be missing or out of date.
    if ((await install()).code !== 0) {
      await aptUpdate(pulse);
      await install();
    }
  });
}

/** Whether systemd runs, which starts the services of new packages. */
export function hasSystemd(): boolean {
  return existsSync("/run/systemd/system");
}
