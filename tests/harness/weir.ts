import { spawn } from "node:child_process";
import { root } from "../../scripts/lib/paths.ts";
import { Service } from "../../scripts/lib/process.ts";
import { untilOk } from "../../scripts/lib/ready.ts";
import { type Supervised, supervise } from "../../scripts/lib/supervisor.ts";
import type { Database } from "./database.ts";
import type { Secrets } from "./identity.ts";
import { type Lifetime, required, whenOver } from "./lifetime.ts";
import { showOnFailure } from "./logs.ts";
import { freePort } from "./ports.ts";

export interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** The environment of the binary. */
export function weirEnvironment(
  database: Pick<Database, "url">,
  secrets: Secrets,
  more: Record<string, string> = {},
): NodeJS.ProcessEnv {
  return {
    ...process.env,
    DATABASE_URL: database.url,
    JWT_SECRET: secrets.jwt,
    EDGE_SECRET: secrets.edge,
    WEIR_ENV: "development",
    ...more,
  };
}

/** Runs the binary `weir` to completion: the one under test, or another. */
export function weir(args: string[], env: NodeJS.ProcessEnv, binary = required("WEIR_TEST_BINARY")): Promise<Ran> {
  return new Promise((done, failed) => {
    const child = spawn(binary, args, { cwd: root, env, stdio: ["ignore", "pipe", "pipe"] });
    const ran: Ran = { code: null, stdout: "", stderr: "" };
    child.stdout.on("data", (data) => (ran.stdout += String(data)));
    child.stderr.on("data", (data) => (ran.stderr += String(data)));
    child.on("error", failed);
    child.on("close", (code) => done({ ...ran, code }));
  });
}

export interface Origin {
  url: string;
  port: number;
  /** Restarted when it fences itself, as by `npm start`. */
  readonly process: Supervised;
  env: NodeJS.ProcessEnv;
  /** The last 200 lines of its log. */
  log(): string;
  stop(): Promise<void>;
  /** Stops it as an operator does, and starts this binary in its place. */
  replaceBy(binary: string): Promise<void>;
}

/** Migrates the database and starts the origin on it: `weir up`, or another subcommand. */
export async function startOrigin(
  lifetime: Lifetime,
  options: {
    database: Database;
    secrets: Secrets;
    env?: Record<string, string>;
    args?: string[];
    port?: number;
    binary?: string;
  },
): Promise<Origin> {
  const port = options.port ?? (await freePort());
  const args = options.args ?? ["up"];
  const env = weirEnvironment(options.database, options.secrets, {
    WEIR_ORIGIN_HOST: "127.0.0.1",
    WEIR_ORIGIN_PORT: String(port),
    ...options.env,
  });
  let binary = options.binary ?? required("WEIR_TEST_BINARY");
  const migrated = await weir(["migrate"], env, binary);
  if (migrated.code !== 0)
    throw new Error(`weir migrate ended with ${migrated.code}\n${migrated.stderr}${migrated.stdout}`);
  const lines: string[] = [];
  const onLine = (line: string): void => {
    lines.push(line);
    if (lines.length > 200) lines.shift();
  };
  const start = (): Supervised => supervise(() => new Service("origin", binary, args, { env, grace: 10_000, onLine }));
  let service = start();
  whenOver(lifetime, () => service.stop());
  const url = `http://127.0.0.1:${port}`;
  const log = (): string => lines.join("\n");
  showOnFailure(`weir ${args.join(" ")}`, log);
  const ready = (): Promise<void> =>
    Promise.race([
      untilOk(`${url}/readyz`, 30_000).catch((error: Error) => {
        throw new Error(`${error.message}\n${log()}`);
      }),
      service.ended.then((how) => {
        throw new Error(`weir ${args.join(" ")} ${how}\n${log()}`);
      }),
    ]);
  await ready();
  return {
    url,
    port,
    get process() {
      return service;
    },
    env,
    log,
    stop: () => service.stop(),
    async replaceBy(other) {
      await service.stop();
      binary = other;
      service = start();
      await ready();
    },
  };
}
