import { type ChildProcess, fork } from "node:child_process";
import { join } from "node:path";
import { build } from "esbuild";
import { convertV4MiniflareOptions, Miniflare, type V4MiniflareOptions, type V4WorkerOptions } from "miniflare";
import { edgeName, edgeWorker } from "../../tests/edge/workerd.ts";
import { freshSecrets, type Secrets } from "../../tests/harness/identity.ts";

const here = import.meta.dirname;

/** Everything that is measured, in one workerd, each at a socket of its own without anything in between. */
export interface Field {
  miniflare: Miniflare;
  secrets: Secrets;
  origin: string;
  urls: Record<string, string>;
  close(): Promise<void>;
}

/** A peer's program as it would be deployed: one file. */
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

/** What counts for a peer: objects of this class. */
function counters(className: string): Partial<V4WorkerOptions> {
  return { durableObjects: { COUNTERS: { className, useSQLite: true } } };
}

export async function startOrigin(): Promise<{ url: string; child: ChildProcess }> {
  const child = fork(join(here, "origin.mjs"), { stdio: ["ignore", "inherit", "inherit", "ipc"] });
  const port = await new Promise<number>((done) => child.once("message", (port) => done(port as number)));
  return { url: `http://127.0.0.1:${port}`, child };
}

export async function startField(storage: string): Promise<Field> {
  const origin = await startOrigin();
  const secrets = freshSecrets();
  // Without the page: in the local runtime, a Worker that serves files has three others in front of it.
  const weir = edgeWorker({
    originUrl: origin.url,
    secrets,
    vars: { ANON_READ_LIMIT: "1000000" },
    worker: { assets: undefined },
  });
  const workers = [
    weir,
    await peer("minimal", origin.url, counters("PerAddress")),
    await peer("memory", origin.url, counters("PerAddress")),
    await peer("hono", origin.url, counters("DurableObjectRateLimiter")),
    await peer("hono", origin.url, { name: "hono-counted", ...counters("CountedRateLimiter") }),
    await peer("binding", origin.url, {
      ratelimits: { LIMITER: { namespace_id: "1", simple: { limit: 10, period: 60 } } },
    }),
    await peer("forwarder", origin.url),
  ].map((worker) => ({ ...worker, unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }] }));
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      host: "127.0.0.1",
      port: 0,
      cf: false,
      workers,
      resourcePersistencePath: storage,
    } as unknown as V4MiniflareOptions),
  );
  await miniflare.ready;
  const urls: Record<string, string> = {};
  for (const { name } of workers)
    urls[name === edgeName ? "weir" : String(name)] = (await miniflare.unsafeGetDirectURL(name)).href.replace(
      /\/$/,
      "",
    );
  return {
    miniflare,
    secrets,
    origin: origin.url,
    urls,
    async close() {
      await miniflare.dispose();
      origin.child.disconnect();
    },
  };
}
