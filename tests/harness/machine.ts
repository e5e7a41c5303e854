import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  existsSync,
  globSync,
  lstatSync,
  mkdirSync,
  readlinkSync,
  rmdirSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { copyFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { onExit } from "../../scripts/lib/lifecycle.ts";
import { attempt, type Outcome, Service } from "../../scripts/lib/process.ts";
import { temporaryFolder } from "../../scripts/lib/temporary-folder.ts";
import { type Lifetime, whenOver } from "./lifetime.ts";
import { showOnFailure } from "./logs.ts";
import { descendants } from "./processes.ts";

/** The reason why no machine can be booted here; false where one can. */
export function skipWithoutMachine(): string | false {
  if (process.platform !== "linux") return "needs Linux";
  if (process.getuid?.() !== 0) return "needs root, for systemd-nspawn";
  try {
    execFileSync("systemd-nspawn", ["--version"], { stdio: "ignore" });
  } catch {
    return "systemd-nspawn is not installed (Debian: apt install systemd-container)";
  }
  if (!existsSync("/usr/lib/systemd/systemd")) return "systemd is not installed under /usr";
  return lstatSync("/bin").isSymbolicLink() ? false : "/bin is not in /usr";
}

/** Where systemd-nspawn cannot get a cgroup from a systemd, each machine gets a separate one by hand. */
const hierarchies = existsSync("/run/systemd/system")
  ? []
  : ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"].filter((folder) =>
      existsSync(join(folder, "cgroup.procs")),
    );

/** Whether a process is in a PID namespace other than this process's. */
function isInside(pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`) !== readlinkSync("/proc/self/ns/pid");
  } catch {
    return false;
  }
}

/**
 * A machine with a systemd, in a container. It has this machine's /usr and loopback interface, and a separate /etc. No
 * units are enabled.
 */
export class Machine {
  /** The path of its root file system on this machine. */
  readonly root: string;
  readonly #name = `weir-${randomBytes(4).toString("hex")}`;
  readonly #lifetime: Lifetime;
  #leader = 0;
  #nspawn: Service | undefined;

  constructor(lifetime: Lifetime) {
    this.#lifetime = lifetime;
    this.root = temporaryFolder("weir-machine-");
    whenOver(lifetime, () => rm(this.root, { recursive: true, force: true }));
    const folders = ["etc", "usr", "proc", "sys", "dev", "run", "tmp", "var", "root", "srv"];
    for (const folder of folders) mkdirSync(join(this.root, folder));
    mkdirSync(join(this.root, "etc/systemd/system"), { recursive: true });
    for (const name of ["bin", "sbin", "lib", "lib32", "lib64", "libx32"])
      if (existsSync(`/${name}`)) symlinkSync(readlinkSync(`/${name}`), join(this.root, name));
    // A machine without an id would enable every installed unit.
    writeFileSync(join(this.root, "etc/machine-id"), `${randomBytes(16).toString("hex")}\n`);
    writeFileSync(join(this.root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
    writeFileSync(join(this.root, "etc/group"), "root:x:0:\n");
  }

  /** Boots it to multi-user.target. Its /usr is this machine's, to read, but for these empty folders. */
  async boot(...emptied: string[]): Promise<void> {
    await copyFile("/etc/os-release", join(this.root, "etc/os-release"));
    const groups = hierarchies.map((folder) => join(folder, this.#name));
    for (const group of groups) mkdirSync(group);
    // The shell moves itself into the groups and becomes systemd-nspawn.
    const enter = groups.map((group) => `echo $$ > ${group}/cgroup.procs`);
    const args = [
      `--directory=${this.root}`,
      "--bind-ro=/usr",
      ...emptied.map((folder) => `--tmpfs=${folder}`),
      `--machine=${this.#name}`,
      "--register=no",
      ...(groups.length > 0 ? ["--keep-unit"] : []),
      "--link-journal=no",
      "--console=pipe",
      "--boot",
      "systemd.unit=multi-user.target",
    ];
    const script = [...enter, 'exec systemd-nspawn "$@"'].join(" && ");
    const nspawn = new Service("systemd-nspawn", "sh", ["-c", script, "sh", ...args], { grace: 30_000 });
    this.#nspawn = nspawn;
    whenOver(this.#lifetime, () => this.stop());
    onExit(() => this.stop());
    showOnFailure("systemd-nspawn", () => nspawn.recent.join("\n"));
    showOnFailure("the machine", () => (this.#leader ? this.#journal() : "it did not boot"));
    let how: string | undefined;
    void nspawn.ended.then((ended) => (how = ended));
    for (const deadline = Date.now() + 60_000; ; await sleep(100)) {
      this.#leader ||= descendants(nspawn.pid ?? 0).find(isInside) ?? 0;
      const state = this.#leader ? (await this.try("systemctl", "is-system-running")).stdout.trim() : "no process yet";
      // A degraded machine is fine here; the tests check the units.
      if (state === "running" || state === "degraded") return;
      if (how !== undefined) throw new Error(`systemd-nspawn ${how}\n${nspawn.recent.join("\n")}`);
      if (Date.now() > deadline) throw new Error(`the machine does not boot: ${state}\n${nspawn.recent.join("\n")}`);
    }
  }

  /** Runs a program in it, as root and outside of every unit. */
  try(...command: string[]): Promise<Outcome> {
    return attempt("nsenter", [`--target=${this.#leader}`, "--all", "--wd=/", "--", ...command]);
  }

  async run(...command: string[]): Promise<string> {
    const { code, stdout, output } = await this.try(...command);
    if (code === 0) return stdout;
    throw new Error(`${command.join(" ")} ended with ${code}: ${output}`);
  }

  /** Properties of a unit, as printed by `systemctl show`. */
  async unit(name: string): Promise<Record<string, string>> {
    const lines = (await this.run("systemctl", "show", name)).split("\n");
    return Object.fromEntries(lines.map((line) => line.split(/=(.*)/s).slice(0, 2)));
  }

  #journal(): string {
    const args = [`--target=${this.#leader}`, "--all", "--", "journalctl", "--no-pager", "--lines=60"];
    return execFileSync("nsenter", args, { encoding: "utf8" });
  }

  /** Shuts it down, by force if it does not end. */
  async stop(): Promise<void> {
    await this.#nspawn?.stop();
    try {
      // When its first process ends, all of its processes end. That process outlives a killed systemd-nspawn.
      if (this.#leader) process.kill(this.#leader, "SIGKILL");
      while (existsSync(`/proc/${this.#leader}`)) await sleep(20);
    } catch {
      // It ended with systemd-nspawn.
    }
    for (const group of hierarchies.map((folder) => join(folder, this.#name)))
      for (const each of [...globSync(`${group}/**/`), group].sort().reverse()) if (existsSync(each)) rmdirSync(each);
    await rm(`/run/systemd/nspawn/propagate/${this.#name}`, { recursive: true, force: true });
  }
}
