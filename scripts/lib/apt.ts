import { attempt } from "./process.ts";
import type { Pulse } from "./progress.ts";

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

/** The version that apt would install, according to this machine's package lists. */
export async function candidate(name: string): Promise<string | undefined> {
  const outcome = await attempt("apt-cache", ["policy", name], { env: { ...process.env, LC_ALL: "C" } });
  const version = /^ {2}Candidate: (.+)$/m.exec(outcome.stdout)?.[1];
  return version === "(none)" ? undefined : version;
}
