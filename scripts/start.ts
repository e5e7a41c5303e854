import { join, relative, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { buildEdge, quickly } from "./lib/edge.ts";
import { startEdge } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { isExiting, onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { PartLog } from "./lib/part-log.ts";
import { logs, root, state } from "./lib/paths.ts";
import { choosePorts, host, type Wanted } from "./lib/ports.ts";
import { answers, ensureDatabase, startPostgres } from "./lib/postgres.ts";
import { run, Service } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";
import { untilOk } from "./lib/ready.ts";
import { claimRunFile, recordPlaces } from "./lib/run-file.ts";
import { developmentSecrets, type Secrets } from "./lib/secrets.ts";
import { developmentServices } from "./lib/services.ts";
import { supervise } from "./lib/supervisor.ts";

const started = Date.now();

/** Longer than the 30 s that its jobs may take to end, because the jobs' programs must end with it. */
const originGrace = 40_000;

await runMain(async () => {
  const verbose = isVerbose(process.argv.slice(2));
  const ownDatabase = process.env.DATABASE_URL;
  const wanted: Wanted[] = [
    { name: "WEIR_EDGE_PORT", usual: 8787, what: "the edge" },
    { name: "WEIR_ORIGIN_PORT", usual: 8080, what: "the origin" },
    ...(ownDatabase ? [] : [{ name: "WEIR_PG_PORT", usual: 54320, what: "PostgreSQL" }]),
  ];
  const secrets = await developmentSecrets();
  await claimRunFile();
  // Ports that the user has set are checked before the build, so that a conflict is reported immediately.
  await choosePorts(wanted.filter(({ name }) => process.env[name]));
  const weir = await buildNative();
  await buildEdge(quickly);

  onExit(() => say("stopped"));
  const { failed } = await startParts({ verbose, wanted, secrets, weir });
  return failed;
});

/** Starts all parts, and returns when they are ready. The result also resolves when one of them ends. */
async function startParts(options: {
  verbose: boolean;
  wanted: Wanted[];
  secrets: Secrets;
  weir: string;
}): Promise<{ failed: Promise<number> }> {
  const { verbose, wanted, secrets, weir } = options;
  const ownDatabase = process.env.DATABASE_URL;
  const [edgePort = 0, originPort = 0, postgresPort = 0] = await choosePorts(wanted);
  const databaseUrl = ownDatabase || `postgres://weir:${secrets.postgres}@${host}:${postgresPort}/weir`;
  const config = process.env.WEIR_CONFIG && resolve(process.env.WEIR_CONFIG);
  await recordPlaces({ databaseUrl, originPort, edgePort, config });

  const log = {
    postgres: new PartLog("postgres", () => verbose),
    origin: new PartLog("origin", () => verbose),
    // Errors of the edge's build are shown immediately, to developers of the edge.
    edge: new PartLog("edge", (line) => verbose || line.includes("[ERROR]")),
  };
  const parts: { log: PartLog; ended: Promise<string> }[] = [];
  if (ownDatabase) {
    await step("reaching the PostgreSQL of DATABASE_URL", () =>
      answers(ownDatabase, 10_000, 5).catch((error: Error) => {
        throw new Failure(
          `the database of DATABASE_URL does not answer: ${error.message}`,
          "start it or correct DATABASE_URL; unset it to use the PostgreSQL that comes with Weir",
        );
      }),
    );
  } else {
    await step("starting PostgreSQL", async () => {
      const server = await startPostgres({
        data: join(state, "postgres"),
        port: postgresPort,
        password: secrets.postgres,
        onLine: log.postgres.take,
      });
      parts.push({ log: log.postgres, ended: server.service.ended });
      await ensureDatabase(server, "weir");
    });
  }

  const env: NodeJS.ProcessEnv = {
    ...process.env,
    DATABASE_URL: databaseUrl,
    JWT_SECRET: secrets.jwt,
    EDGE_SECRET: secrets.edge,
    WEIR_ENV: process.env.WEIR_ENV || "development",
    WEIR_ORIGIN_HOST: host,
    WEIR_ORIGIN_PORT: String(originPort),
  };
  env.WEIR_CONFIG = config || (await developmentServices(weir, env));
  await step("migrating the database", (pulse) =>
    run(weir, ["migrate"], { env, pulse, log: "migrate", remedy: "see the output of the migration above" }),
  );

  // The edge takes longest to start and needs the others only for requests.
  const edge = await startEdge({ port: edgePort, originPort, onLine: log.edge.take });
  const originReady = `http://${host}:${originPort}/readyz`;
  const origin = supervise(
    () => new Service("origin", weir, ["up"], { cwd: root, env, grace: originGrace, onLine: log.origin.take }),
    () =>
      void untilOk(originReady, 60_000).then(
        () => say("the origin is back"),
        () => {},
      ),
  );
  parts.push({ log: log.origin, ended: origin.ended }, { log: log.edge, ended: edge.ended });

  const failed = Promise.race(parts.map(async ({ log, ended }) => ({ log, how: await ended }))).then(
    async ({ log, how }) => {
      // Its last lines may still be on their way.
      await sleep(200);
      if (isExiting()) return 0;
      throw log.failure(`${log.name} ${how}, so the stack stops`);
    },
  );

  const url = `http://${host}:${edgePort}`;
  const ready = (async () => {
    await step("starting the origin and the edge", async () => {
      await answersOf(log.origin, untilOk(originReady, 60_000));
      await answersOf(log.edge, untilOk(`${url}/`, 60_000));
      // Sends a request through the edge to the origin and the database.
      await answersOf(log.edge, untilOk(`${url}/api/usage`, 20_000));
    });
    say(`console for operators: http://${host}:${originPort}/console`);
    say(`origin http://${host}:${originPort}, logs in ${relative(process.cwd(), logs)}, or here with --verbose`);
    say(`everything is up after ${((Date.now() - started) / 1000).toFixed(1)} s; Ctrl-C stops it`);
    console.log(`weir: ready ${url}`);
  })();
  await Promise.race([ready, failed]);
  return { failed };
}

/** Waits for a part's answer. If it fails, shows the part's log. */
function answersOf(log: PartLog, answer: Promise<void>): Promise<void> {
  return answer.catch((error: Error) => {
    throw log.failure(error.message);
  });
}

function isVerbose(args: string[]): boolean {
  const unknown = args.find((arg) => arg !== "--verbose");
  if (unknown) throw new Failure(`unknown option ${unknown}`, "start it with npm start, or npm start -- --verbose");
  return args.length > 0;
}
