import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { onExit } from "./lifecycle.ts";
import { host, portFrom } from "./ports.ts";
import { exitCodeOf } from "./process.ts";
import { liveRun } from "./run-file.ts";
import { developmentSecrets } from "./secrets.ts";
import { developmentServices } from "./services.ts";

/** Whether there is a terminal that sends Ctrl-C to the whole process group. */
function hasTerminal(): boolean {
  try {
    closeSync(openSync("/dev/tty", "r"));
    return true;
  } catch {
    return false;
  }
}

/**
 * Runs a program with the settings of the development stack, in the same process group and on the same terminal. `weir`
 * reads the services for it. Returns the exit code.
 */
export async function inForeground(program: string, args: string[], weir: string): Promise<number> {
  const secrets = await developmentSecrets();
  const stack = await liveRun();
  const databaseUrl =
    process.env.DATABASE_URL ||
    stack?.databaseUrl ||
    `postgres://weir:${secrets.postgres}@${host}:${portFrom("WEIR_PG_PORT", 54320)}/weir`;
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    DATABASE_URL: databaseUrl,
    JWT_SECRET: process.env.JWT_SECRET || secrets.jwt,
    EDGE_SECRET: process.env.EDGE_SECRET || secrets.edge,
    WEIR_ENV: process.env.WEIR_ENV || "development",
    WEIR_ORIGIN_PORT: process.env.WEIR_ORIGIN_PORT || String(stack?.originPort ?? 8080),
  };
  env.WEIR_CONFIG = process.env.WEIR_CONFIG || stack?.config || (await developmentServices(weir, env));
  const child = spawn(program, args, { env, stdio: "inherit" });
  const ended = exitCodeOf(child);
  let wasSignalled = false;
  const forward = (signal: NodeJS.Signals): void => {
    wasSignalled = true;
    child.kill(signal);
  };
  for (const signal of ["SIGTERM", "SIGHUP"] as const) process.on(signal, forward);
  // The program also gets Ctrl-C. A second signal would end it before its jobs.
  process.on("SIGINT", (signal) => {
    if (hasTerminal()) wasSignalled = true;
    else forward(signal);
  });
  onExit(async () => {
    if (!wasSignalled) forward("SIGTERM");
    await ended.catch(() => {});
  });
  const code = await ended;
  if (code !== 0 && !stack && !process.env.DATABASE_URL)
    console.error("weir: the development stack of this clone is not running; to start it: npm start");
  return code;
}
