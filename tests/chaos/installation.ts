import { createWriteStream, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { untilOk } from "../../scripts/lib/ready.ts";
import { type DatabaseBehindProxy, startDatabaseBehindProxy } from "../drills/server.ts";
import { freshSecrets } from "../harness/identity.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { weir, weirEnvironment } from "../harness/weir.ts";
import { Clock, forgetClocks } from "./clock.ts";
import { Effects } from "./effects.ts";
import { Part } from "./part.ts";

/** The exit codes of a process that lost the database for longer than the lease, or could not start without it. */
const copes = [70, 2];

export interface Installation {
  database: DatabaseBehindProxy;
  /** The URL that all of them connect to. */
  url: string;
  env: NodeJS.ProcessEnv;
  parts: Part[];
  /** The addresses of the API. */
  origins: string[];
  /** The address of each part's /metrics. */
  metrics: Map<string, string>;
  /** A service key. */
  key: string;
  effects: Effects;
  /** The services with workers. */
  services: string[];
  /** The clocks of PostgreSQL and of each of Weir's processes, by name; empty if they use the machine's. */
  clocks: Map<string, Clock>;
  /** The names of dead Go clients. Their jobs stay unfinished. */
  dead: Set<string>;
}

/**
 * Starts several of each of Weir's processes, all behind the proxy unless `direct`. With `fleet`, the program of
 * `clients/go/example`, also starts several River clients in Go. With `clocks`, their clocks can be set. Their logs go
 * into the folder.
 */
export async function startInstallation(
  lifetime: Lifetime,
  options: { logs: string; fleet: string | undefined; each: number; direct?: boolean; clocks?: boolean },
): Promise<Installation> {
  mkdirSync(options.logs, { recursive: true });
  const log = (name: string): ((line: string) => void) => {
    const out = createWriteStream(join(options.logs, `${name}.log`), { flags: "a" });
    whenOver(lifetime, () => void out.end());
    return (line) => out.writable && out.write(`${new Date().toISOString()} ${line}\n`);
  };
  const clocks = new Map<string, Clock>();
  const clock = (name: string, threads: boolean): Record<string, string> => {
    if (!options.clocks) return {};
    const made = new Clock(name, { threads });
    clocks.set(name, made);
    return made.env;
  };
  if (options.clocks) whenOver(lifetime, forgetClocks);
  const database = await startDatabaseBehindProxy(lifetime, log("postgres"), clock("postgres", false));
  const effects = await Effects.start(lifetime);
  const config = join(required("WEIR_TEST_FOLDER"), `chaos-${effects.port}.toml`);
  writeFileSync(config, catalogue(effects));
  const url = options.direct ? database.appUrl : database.url;
  const env = weirEnvironment({ url }, freshSecrets(), {
    WEIR_CONFIG: config,
    RUST_LOG: "info,sqlx=warn,riverqueue=warn",
  });
  await succeeds(["migrate"], env);
  const admin = database.admin();
  await admin`CREATE TABLE results (number int NOT NULL)`;
  await admin`ALTER TABLE results OWNER TO app`;
  await admin.end({ timeout: 2 });
  const made = await succeeds(["key", "create", "--name", "chaos", "--scope", "submit,read"], env);

  const installation: Installation = {
    database,
    url,
    env,
    parts: [],
    origins: [],
    metrics: new Map(),
    key: made.trim().split("\n").at(-1) ?? "",
    effects,
    services: ["write", "post", ...(options.fleet ? ["analysis"] : [])],
    clocks,
    dead: new Set(),
  };
  const start = (part: Part): void => {
    installation.parts.push(part);
    whenOver(lifetime, () => part.stop());
  };
  for (let n = 1; n <= options.each; n++) {
    for (const args of [["serve"], ["work", "--service", "write,post"], ["schedule"]]) {
      const name = `${args[0]}-${n}`;
      const port = String(await freePort());
      const own = {
        WEIR_ORIGIN_HOST: "127.0.0.1",
        WEIR_ORIGIN_PORT: port,
        WEIR_METRICS_PORT: port,
        ...clock(name, true),
      };
      const file = required("WEIR_TEST_BINARY");
      const make = (): { file: string; args: string[]; env: NodeJS.ProcessEnv } => ({
        file,
        args,
        env: { ...env, ...own },
      });
      start(new Part(name, { make, mayEnd: (code) => copes.includes(code), onLine: log(name) }));
      installation.metrics.set(name, `http://127.0.0.1:${port}`);
      if (args[0] === "serve") installation.origins.push(`http://127.0.0.1:${port}`);
    }
    if (options.fleet) start(fleet(installation, options.fleet, `fleet-${n}`, log(`fleet-${n}`)));
  }
  await Promise.all([...installation.metrics.values()].map((url) => untilOk(`${url}/readyz`, 60_000)));
  return installation;
}

/** Each start has a new name, so that the jobs of a dead client can be found. */
function fleet(installation: Installation, file: string, name: string, onLine: (line: string) => void): Part {
  const called = (start: number): string => `${name}-${start}`;
  return new Part(name, {
    make: (start) => ({
      file,
      args: ["-takes", "30ms", "-name", called(start), "work"],
      env: { ...process.env, DATABASE_URL: installation.url },
      untilStdinEnds: true,
    }),
    // The example ends immediately if it cannot connect.
    mayEnd: (code) => code === 1,
    onLine,
    onGone: (start) => installation.dead.add(called(start)),
  });
}

async function succeeds(args: string[], env: NodeJS.ProcessEnv): Promise<string> {
  const ran = await weir(args, env);
  if (ran.code !== 0) throw new Error(`weir ${args.join(" ")} ended with ${ran.code}\n${ran.stderr}${ran.stdout}`);
  return ran.stdout;
}

/** Three services of one meter: a program, an endpoint, and a service of the Go fleet. */
function catalogue(effects: Effects): string {
  const plans = [
    ["free", "default", 1, 3],
    ["pro", "priority", 3, 5],
    ["enterprise", "priority", 5, 7],
  ].map(
    ([name, lane, slots, burst]) => `
[[plan]]
name = "${name}"
default = ${name === "free"}
lane = "${lane}"
slots = ${slots}
burst = ${burst}
limits = { analysis = { month = 1000000, minute = 1000000 } }
`,
  );
  const services = [
    ["write", "chaos:write", `{ type = "exec", command = ["sh", "-c", ${JSON.stringify(effects.script)}] }`],
    ["post", "chaos:post", `{ type = "http", url = "${effects.url}", private = true }`],
    ["analysis", "analysis:analyze", `{ type = "exec", command = ["false"] }`],
  ].map(
    ([name, kind, handler]) => `
[[service]]
name = "${name}"
event_type = "analysis"
kind = "${kind}"
workers = "CHAOS_${name?.toUpperCase()}"
priority_workers = 4
default_workers = 4
scheduled_workers = 1
timeout = "30s"
max_attempts = 50
retry = { base = "200ms", factor = 1.5, max = "2s" }
handler = ${handler}
`,
  );
  return ['[[meter]]\nname = "analysis"\nunit = "analyses"\n', ...plans, ...services].join("");
}
