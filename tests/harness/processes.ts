import { readdirSync, readFileSync } from "node:fs";

/** Only Linux shows processes as files. */
export const canFreeze = process.platform === "linux";

/** Freezes a process and its children, like a machine that hangs. Returns a function that thaws them. */
export function freeze(pid: number): () => void {
  const frozen = [pid, ...descendants(pid)];
  for (const each of frozen) send(each, "SIGSTOP");
  return () => {
    for (const each of frozen) send(each, "SIGCONT");
  };
}

export function descendants(pid: number): number[] {
  const children = readdirSync("/proc")
    .map(Number)
    .filter((each) => each > 0 && parentOf(each) === pid);
  return children.flatMap((child) => [child, ...descendants(child)]);
}

/** The fields of a process's status from the third one. The second one is its name, which may contain spaces. */
export function fieldsOf(pid: number): string[] {
  return readFileSync(`/proc/${pid}/stat`, "utf8")
    .replace(/^.*\) /s, "")
    .split(" ");
}

function parentOf(pid: number): number | undefined {
  try {
    return Number(fieldsOf(pid)[1]);
  } catch {
    return undefined;
  }
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // The process has ended already.
  }
}
