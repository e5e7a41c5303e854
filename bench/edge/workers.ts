import { type ChildProcess, fork } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";
import { convertV4MiniflareOptions, Miniflare, type V4MiniflareOptions, type V4WorkerOptions } from "miniflare";
import { type Algorithm, type Issuer, startIssuer } from "../../tests/edge/issuer.ts";
import { edgeName, edgeWorker } from "../../tests/edge/workerd.ts";
import { freshSecrets, type Secrets } from "../../tests/harness/identity.ts";
import { descendants, fieldsOf } from "../../tests/harness/processes.ts";

const here = import.meta.dirname;

/** The algorithms that identity providers sign with. */
export const algorithms = ["RS256", "ES256", "ES384", "EdDSA"] as const satisfies Algorithm[];

/** All contenders, each in a separate workerd at a direct socket. */
export interface Field {
  runtimes: Record<string, Miniflare>;
  secrets: Secrets;
  /** Signs tokens with these algorithms. */
  issuer: Issuer;
  origin: string;
  urls: Record<string, string>;
  /** The CPU time of a contender's workerd so far, in microseconds; undefined where /proc is missing. */
  cpu(name: string): number | undefined;
  close(): Promise<void>;
}

/** A peer's program bundled into one file, as for a deployment. */
export async function bundle(name: string): Promise<string> {
  const built = await build({
    entryPoints: [join(here, "peers", `${name}.mjs`)],
    bundle: true,
    format: "esm",
    target: "es2024",
    conditions: ["workerd", "worker", "browser"],
    external: ["cloudflare:workers"],
    write: false,
    minify: true,
  });
  return built.outputFiles[0]?.text ?? "";
}

async function peer(file: string, originUrl: string, more: Partial<V4WorkerOptions> = {}): Promise<V4WorkerOptions> {
  return {
    name: file,
    modules: true,
    script: await bundle(file),
    compatibilityDate: "2026-09-01",
    bindings: { ORIGIN_URL: originUrl },
    ...more,
  } as V4WorkerOptions;
}

/** The Durable Object class that counts for a peer. */
function counters(className: string): Partial<V4WorkerOptions> {
  return { durableObjects: { COUNTERS: { className, useSQLite: true } } };
}

export async function startOrigin(): Promise<{ url: string; child: ChildProcess }> {
  const child = fork(join(here, "origin.mjs"), { stdio: ["ignore", "inherit", "inherit", "ipc"] });
  const port = await new Promise<number>((done) => child.once("message", (port) => done(port as number)));
  return { url: `http://127.0.0.1:${port}`, child };
}

/**
 * Starts a Worker in a separate workerd. In a shared one, objects of other Workers would take time long after their
 * round: they are evicted, and their alarms go off.
 */
function startRuntime(worker: V4WorkerOptions, storage: string): Miniflare {
  return new Miniflare(
    convertV4MiniflareOptions({
      host: "127.0.0.1",
      port: 0,
      cf: false,
      workers: [{ ...worker, unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }] }],
      resourcePersistencePath: storage,
    } as unknown as V4MiniflareOptions),
  );
}

/** The processes that this one has started; none where /proc is missing. */
function children(): number[] {
  return existsSync("/proc") ? descendants(process.pid) : [];
}

/** The CPU time of a process in microseconds. Linux counts it in hundredths of a second. */
function cpuTime(pid: number | undefined): number | undefined {
  if (pid === undefined) return undefined;
  const fields = fieldsOf(pid);
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

/** `before` is a clone with an older edge, built. */
export async function startField(storage: string, before?: string): Promise<Field> {
  const origin = await startOrigin();
  const secrets = freshSecrets();
  const ends: (() => unknown)[] = [];
  // Where the harness of the tests reserves ports.
  process.env.WEIR_TEST_FOLDER ??= storage;
  const issuer = await startIssuer({ after: (end) => ends.push(end) }, { iss: "https://id.test" });
  for (const algorithm of algorithms) issuer.addKey(algorithm, algorithm);
  const keys = await (await fetch(issuer.url)).text();
  const edge = (name: string, clone?: string): V4WorkerOptions =>
    edgeWorker({
      originUrl: origin.url,
      secrets,
      clone,
      vars: { ANON_READ_LIMIT: "1000000", JWKS_URL: issuer.url },
      // Without the page: in the local runtime, a Worker with static files runs behind three other Workers.
      worker: { name, assets: undefined },
    });
  const workers: Record<string, V4WorkerOptions> = {
    weir: edge(edgeName),
    minimal: await peer("minimal", origin.url, counters("PerAddress")),
    memory: await peer("memory", origin.url, counters("PerAddress")),
    hono: await peer("hono", origin.url, counters("DurableObjectRateLimiter")),
    "hono-counted": await peer("hono", origin.url, counters("CountedRateLimiter")),
    binding: await peer("binding", origin.url, {
      ratelimits: { LIMITER: { namespace_id: "1", simple: { limit: 10, period: 60 } } },
    }),
    forwarder: await peer("forwarder", origin.url),
    signer: await peer("signer", origin.url, {
      bindings: { ORIGIN_URL: origin.url, JWT_SECRET: secrets.jwt, EDGE_SECRET: secrets.edge, KEYS: keys },
    }),
    ...(before && { before: edge("before", before) }),
  };
  const runtimes: Record<string, Miniflare> = {};
  const urls: Record<string, string> = {};
  const processes: Record<string, number | undefined> = {};
  for (const [name, worker] of Object.entries(workers)) {
    const known = children();
    const runtime = startRuntime(worker, join(storage, name));
    runtimes[name] = runtime;
    urls[name] = (await runtime.unsafeGetDirectURL(worker.name)).href.replace(/\/$/, "");
    processes[name] = children().find((id) => !known.includes(id));
  }
  return {
    runtimes,
    secrets,
    issuer,
    origin: origin.url,
    urls,
    cpu: (name) => cpuTime(processes[name]),
    async close() {
      await Promise.all(Object.values(runtimes).map((runtime) => runtime.dispose()));
      origin.child.disconnect();
      for (const end of ends) await end();
    },
  };
}
