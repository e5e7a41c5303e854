import { existsSync } from "node:fs";
import { attempt } from "./process.ts";
import { type Pulse, step } from "./progress.ts";

export async function hasApt(): Promise<boolean> {
  return process.platform === "linux" && (await attempt("apt-get", ["--version"])).code === 0;
}

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** Updates the package lists if this user may. After a failure, installing a missing package fails. */
export async function aptUpdate(pulse: Pulse): Promise<void> {
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

/** The version that apt would install, according to this machine's package lists. */
export async function candidate(name: string): Promise<string | undefined> {
  const outcome = await attempt("apt-cache", ["policy", name], { env: { ...process.env, LC_ALL: "C" } });
  const version = /^ {2}Candidate: (.+)$/m.exec(outcome.stdout)?.[1];
  return version === "(none)" ? undefined : version;
}
