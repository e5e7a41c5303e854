import { spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { dirname, join } from "node:path";
import { root } from "../../scripts/lib/paths.ts";
import { anyFree } from "../../scripts/lib/ports.ts";
import type { Secrets } from "../../tests/harness/identity.ts";
import { bundle } from "./workers.ts";

/** A Worker as plain workerd expects it: files by module name, the first of them the entry point. */
interface Plain {
  files: Record<string, string>;
  counter: string;
  bindings: Record<string, string>;
}

/** Milliseconds to a first answer, and those of CPU time of the process, which other load affects less. */
interface Times {
  total: number[];
  cpu: number[];
}

/**
 * The time from the start of the runtime's process to its first answer to a submission. The Workers take turns. Includes
 * the process, the isolate, the compilation, the object and one request, without Miniflare.
 */
export async function startTimes(
  folder: string,
  origin: string,
  secrets: Secrets,
  rounds: number,
): Promise<{ weir: Times; minimal: Times }> {
  const minimal = join(folder, "minimal.mjs");
  mkdirSync(folder, { recursive: true });
  writeFileSync(minimal, await bundle("minimal"));
  const workers: Record<"weir" | "minimal", Plain> = {
    weir: {
      files: {
        "src/entry.mjs": join(root, "src", "entry.mjs"),
        "src/weir.mjs": join(root, "src", "weir.mjs"),
        "src/limits.mjs": join(root, "src", "limits.mjs"),
        "src/own.mjs": join(root, "src", "own.mjs"),
        "build/index.js": join(root, "build", "index.js"),
        "build/index_bg.wasm": join(root, "build", "index_bg.wasm"),
      },
      counter: "ADDRESS_COUNTERS AddressCounter",
      bindings: { ORIGIN_URL: origin, JWT_SECRET: secrets.jwt, EDGE_SECRET: secrets.edge },
    },
    minimal: { files: { "minimal.mjs": minimal }, counter: "COUNTERS PerAddress", bindings: { ORIGIN_URL: origin } },
  };
  const times = { weir: { total: [], cpu: [] } as Times, minimal: { total: [], cpu: [] } as Times };
  for (const [name, worker] of Object.entries(workers)) configure(join(folder, name), worker);
  for (let round = -1; round < rounds; round++) {
    for (const name of ["weir", "minimal"] as const) {
      const { total, cpu } = await firstAnswer(join(folder, name));
      if (round < 0) continue;
      times[name].total.push(total);
      if (cpu !== undefined) times[name].cpu.push(cpu);
    }
  }
  return times;
}

/** Writes the runtime's configuration for a Worker into a folder. */
function configure(folder: string, worker: Plain): void {
  const modules = Object.entries(worker.files).map(([name, path]) => {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    cpSync(path, join(folder, name));
    return `(name = "${name}", ${name.endsWith(".wasm") ? "wasm" : "esModule"} = embed "${name}")`;
  });
  mkdirSync(join(folder, "objects"));
  const [binding, className] = worker.counter.split(" ");
  const texts = Object.entries(worker.bindings).map(
    ([name, value]) => `(name = "${name}", text = ${JSON.stringify(value)})`,
  );
  writeFileSync(
    join(folder, "config.capnp"),
    `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "disk", disk = (path = "${join(folder, "objects")}", writable = true)),
    (name = "internet", network = (allow = ["private"])),
  ],
  sockets = [(name = "http", http = (), service = "main")],
);
const worker :Workerd.Worker = (
  modules = [${modules.join(", ")}],
  compatibilityDate = "2026-09-01",
  bindings = [(name = "${binding}", durableObjectNamespace = "${className}"), ${texts.join(", ")}],
  durableObjectNamespaces = [(className = "${className}", uniqueKey = "counter", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
);
`,
  );
}

/** The CPU time of all threads of a process in milliseconds; undefined where /proc is missing. */
function cpuMs(pid: number | undefined): number | undefined {
  const tasks = `/proc/${pid}/task`;
  if (!existsSync(tasks)) return undefined;
  const nanoseconds = (task: string): number =>
    Number(readFileSync(join(tasks, task, "schedstat"), "utf8").split(" ")[0]);
  return readdirSync(tasks).reduce((sum, task) => sum + nanoseconds(task) / 1e6, 0);
}

async function firstAnswer(folder: string): Promise<{ total: number; cpu: number | undefined }> {
  const port = await anyFree();
  const started = process.hrtime.bigint();
  const child = spawn(
    join(root, "node_modules", "workerd", "bin", "workerd"),
    ["serve", "--experimental", `--socket-addr=http=127.0.0.1:${port}`, join(folder, "config.capnp")],
    { stdio: ["ignore", "ignore", "inherit"] },
  );
  const gone = new Promise((done) => child.once("exit", done));
  try {
    for (let tries = 0; tries < 10_000; tries++) {
      const status = await submit(port);
      if (status === 202) {
        const cpu = cpuMs(child.pid);
        return { total: Number(process.hrtime.bigint() - started) / 1e6, cpu };
      }
      if (status !== undefined) throw new Error(`the first answer is ${status}`);
      if (child.exitCode !== null) throw new Error("the runtime has ended");
      await new Promise((done) => setTimeout(done, 1));
    }
    throw new Error("no answer");
  } finally {
    child.kill("SIGKILL");
    await gone;
  }
}

// Each start uses a new client address, because the objects' storage outlives the runtime.
let clients = 0;

/** The status, or `undefined` while nothing listens. */
function submit(port: number): Promise<number | undefined> {
  return new Promise((done) => {
    const outgoing = request(
      {
        host: "127.0.0.1",
        port,
        path: "/api/jobs/analysis",
        method: "POST",
        headers: { "content-length": 2, "cf-connecting-ip": `10.9.${(++clients >> 8) & 255}.${clients & 255}` },
        agent: false,
      },
      (response) => {
        response.resume();
        response.on("end", () => done(response.statusCode));
      },
    );
    outgoing.on("error", () => done(undefined));
    outgoing.end("{}");
  });
}
