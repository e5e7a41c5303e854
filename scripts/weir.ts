import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { host, portFrom } from "./lib/ports.ts";
import { exitCodeOf } from "./lib/process.ts";
import { stayQuietFor } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";
import { developmentSecrets } from "./lib/secrets.ts";
import { developmentServices } from "./lib/services.ts";

stayQuietFor(1500);

/** Whether there is a terminal whose Ctrl-C is for the whole process group. */
function hasTerminal(): boolean {
  try {
    closeSync(openSync("/dev/tty", "r"));
    return true;
  } catch {
    return false;
  }
}

await runMain(async () => {
  // Benchmarks measure the optimised build.
  const weir = await buildNative(process.argv[2] === "bench" ? "native" : "dev");
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
  // In the same process group and on the same terminal, as if the user had started it directly.
  const child = spawn(weir, process.argv.slice(2), { env, stdio: "inherit" });
  const ended = exitCodeOf(child);
  let told = false;
  const tell = (signal: NodeJS.Signals): void => {
    told = true;
    child.kill(signal);
  };
  for (const signal of ["SIGTERM", "SIGHUP"] as const) process.on(signal, tell);
  // Ctrl-C reaches it as well, and a second signal would end it before its jobs.
  process.on("SIGINT", (signal) => {
    if (hasTerminal()) told = true;
    else tell(signal);
  });
  onExit(async () => {
    if (!told) tell("SIGTERM");
    await ended.catch(() => {});
  });
  const code = await ended;
  if (code !== 0 && !stack && !process.env.DATABASE_URL)
    console.error("weir: the development stack of this clone is not running; to start it: npm start");
  return code;
});
