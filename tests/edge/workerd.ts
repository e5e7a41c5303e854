import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import {
  convertV4MiniflareOptions,
  Miniflare,
  type V4MiniflareOptions,
  type V4WorkerOptions as WorkerOptions,
} from "miniflare";
import { unstable_getMiniflareWorkerOptions } from "wrangler";
import { root } from "../../scripts/lib/paths.ts";
import { freshSecrets, type Secrets } from "../harness/identity.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { until } from "../harness/until.ts";

/**
 * The built edge in workerd, configured by `wrangler.toml`, started by Miniflare. In the harness of the whole system,
 * Node sends the edge's own requests, which hides how workerd streams, times out and fails. Here workerd sends them,
 * and other Workers can replace the objects and limiters that the edge calls.
 */
export interface Edge {
  url: string;
  miniflare: Miniflare;
  /** Sends a request with this client address. */
  from(address: string): (path: string, init?: RequestInit) => Promise<Response>;
  /** Evicts a counting object from memory, as Cloudflare does after ten seconds without requests. */
  evict(name?: string): Promise<void>;
  /** The lines of the Worker's log so far. The runtime passes them on after the response. */
  logs: string[];
  /** The lines that contain this text, once there are as many. */
  logged(text: string, times?: number): Promise<string[]>;
}

/** A value in `[vars]`. */
export type Variable = string | number | boolean | Variable[] | { [name: string]: Variable };

export interface EdgeOptions {
  originUrl: string;
  secrets?: Secrets;
  /** The clone that has the edge. Default: this one. */
  clone?: string;
  vars?: Record<string, Variable>;
  /** Variables that are left out. */
  without?: string[];
  /** Changes to the Worker that `wrangler.toml` describes. */
  worker?: Partial<WorkerOptions>;
  /** Other Workers in the same runtime. */
  beside?: WorkerOptions[];
  /** The folder where objects store what they write. By default, it is lost with the edge. */
  storage?: string;
  /** The folder where several edges find each other. */
  registry?: string;
  port?: number;
}

export const edgeName = "weir-edge";

/** The counting object of all tests: in the local runtime, every client is in Austin, Texas. */
export const counterName = "enam-0";

/** The modules of a clone's built edge. An older clone may lack some of them. */
export function edgeModules(clone: string): string[] {
  const modules = [
    "src/entry.mjs",
    "src/weir.mjs",
    "src/limits.mjs",
    "src/own.mjs",
    "build/index.js",
    "build/index_bg.wasm",
  ];
  return modules.map((name) => join(clone, name)).filter((path) => existsSync(path));
}

/** The Worker of `wrangler.toml`, as built by `npm run build:edge`. */
export function edgeWorker(options: EdgeOptions): WorkerOptions {
  const clone = options.clone ?? root;
  const { workerOptions } = unstable_getMiniflareWorkerOptions(join(clone, "wrangler.toml"));
  const secrets = options.secrets ?? freshSecrets();
  const variables = {
    ...(workerOptions.bindings as Record<string, Variable>),
    ORIGIN_URL: options.originUrl,
    JWT_SECRET: secrets.jwt,
    EDGE_SECRET: secrets.edge,
    // An object on an overloaded machine must not count as one that hangs.
    COUNTER_TIMEOUT_MS: "20000",
    ...options.vars,
  };
  return {
    ...(workerOptions as Partial<WorkerOptions>),
    name: edgeName,
    modulesRoot: clone,
    modules: edgeModules(clone).map((path) => ({ type: path.endsWith(".wasm") ? "CompiledWasm" : "ESModule", path })),
    bindings: Object.fromEntries(Object.entries(variables).filter(([name]) => !options.without?.includes(name))),
    ...options.worker,
  } as WorkerOptions;
}

/** The logs of all edges that this test file has started. */
const journals = new Map<string, string[]>();

process.once("exit", (code) => {
  if (code === 0) return;
  for (const [url, lines] of journals) {
    if (lines.length > 0)
      console.log(`the last lines that the edge at ${url} logged:\n  ${lines.slice(-30).join("\n  ")}`);
  }
});

export async function startEdge(lifetime: Lifetime, options: EdgeOptions): Promise<Edge> {
  const logs: string[] = [];
  const edge = edgeWorker(options);
  const counts = options.worker?.durableObjects === undefined;
  const settings = {
    host: "127.0.0.1",
    port: options.port ?? 0,
    cf: false,
    unsafeInspectDurableObjects: true,
    workers: [edge, ...(counts ? [costsWorker(edge)] : []), ...(options.beside ?? [])],
    handleStructuredLogs: ({ message }: { message: string }) => logs.push(message),
    ...(options.storage ? { resourcePersistencePath: options.storage } : {}),
    ...(options.registry ? { unsafeDevRegistryPath: options.registry } : {}),
  } as V4MiniflareOptions;
  const miniflare = new Miniflare(convertV4MiniflareOptions(settings));
  whenOver(lifetime, () => miniflare.dispose());
  const url = (await miniflare.ready).href.replace(/\/$/, "");
  journals.set(url, logs);
  return {
    url,
    miniflare,
    logs,
    logged: (text, times = 1) =>
      until(`${times} lines with "${text}"`, () => {
        const found = logs.filter((line) => line.includes(text));
        return found.length >= times && found;
      }),
    from:
      (address) =>
      (path, init = {}) => {
        const headers = new Headers(init.headers);
        // Cloudflare overwrites this header; the local runtime does not, so a test can set it.
        headers.set("CF-Connecting-IP", address);
        return fetch(url + path, { redirect: "manual", ...init, headers });
      },
    evict: (name = counterName) => miniflare.unsafeEvictDurableObject(edgeName, "AddressCounter", { name }),
  };
}

/** The native limiter counts per minute of the clock. Waits for the next minute unless enough of this one is left. */
export async function timeInTheMinute(): Promise<void> {
  const left = 60_000 - (Date.now() % 60_000);
  if (left < 20_000) await sleep(left + 10);
}

const costsName = "costs";

/**
 * A Worker that reads a counting object's costs. Miniflare could call the object too, but blocks this process until the
 * response. If the runtime waits for this process to read its log, both would hang.
 */
function costsWorker(edge: WorkerOptions): WorkerOptions {
  return {
    name: costsName,
    compatibilityDate: edge.compatibilityDate,
    modules: true,
    script: `export default {
      async fetch(request, { COUNTERS }) {
        const name = new URL(request.url).searchParams.get("name");
        return Response.json(await COUNTERS.get(COUNTERS.idFromName(name)).costs());
      },
    }`,
    durableObjects: { COUNTERS: { className: "AddressCounter", scriptName: edgeName } },
    unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }],
  } as WorkerOptions;
}

/** The cost of a counting object since it was constructed: calls, rows written, addresses held. */
export async function costs(
  edge: Edge,
  name = counterName,
): Promise<{ calls: number; rows: number; addresses: number }> {
  const { host } = await edge.miniflare.unsafeGetDirectURL(costsName);
  const answer = await fetch(`http://${host}/?name=${name}`);
  const [calls, rows, addresses] = (await answer.json()) as [number, number, number];
  return { calls, rows, addresses };
}
