import { join } from "node:path";
import {
  convertV4MiniflareOptions,
  Miniflare,
  type V4MiniflareOptions,
  type V4WorkerOptions as WorkerOptions,
} from "miniflare";
import { unstable_getMiniflareWorkerOptions } from "wrangler";
import { root } from "../../scripts/lib/places.ts";
import { freshSecrets, type Secrets } from "../harness/identity.ts";
import { whenOver, type Lifetime } from "../harness/lifetime.ts";

/**
 * The built edge in workerd as `wrangler.toml` describes it, by Miniflare itself. The harness for tests of the whole
 * lets Node make the edge's own requests, which hides how workerd streams, times out and fails; here they are workerd's,
 * and other Workers can stand in for the objects and limiters that the edge calls.
 */
export interface Edge {
  url: string;
  miniflare: Miniflare;
  /** A request as if from this client address. */
  from(address: string): (path: string, init?: RequestInit) => Promise<Response>;
  /** Drops the counting objects' memory, as Cloudflare does after ten seconds without requests. */
  evict(name?: string): Promise<void>;
  /** Lines that the Worker wrote to its log. */
  logs: string[];
}

export interface EdgeOptions {
  originUrl: string;
  secrets?: Secrets;
  vars?: Record<string, string>;
  /** Changes to the Worker that `wrangler.toml` describes. */
  worker?: Partial<WorkerOptions>;
  /** Workers beside it. */
  beside?: WorkerOptions[];
  /** Where objects keep what they write; else nowhere that outlives the edge. */
  storage?: string;
  /** Where several edges find each other. */
  registry?: string;
  port?: number;
}

export const edgeName = "weir-edge";

/** The counting object of all tests: the local runtime places every client in Austin, Texas. */
export const counterName = "enam-0";

/** The Worker of `wrangler.toml`, from what `npm run build:edge` has built. */
export function edgeWorker(options: EdgeOptions): WorkerOptions {
  const { workerOptions } = unstable_getMiniflareWorkerOptions(join(root, "wrangler.toml"));
  const secrets = options.secrets ?? freshSecrets();
  return {
    ...(workerOptions as Partial<WorkerOptions>),
    name: edgeName,
    modulesRoot: root,
    modules: [
      { type: "ESModule", path: join(root, "src", "entry.mjs") },
      { type: "ESModule", path: join(root, "build", "index.js") },
      { type: "CompiledWasm", path: join(root, "build", "index_bg.wasm") },
    ],
    bindings: {
      ...(workerOptions.bindings as Record<string, string>),
      ORIGIN_URL: options.originUrl,
      JWT_SECRET: secrets.jwt,
      EDGE_SECRET: secrets.edge,
      ...options.vars,
    },
    ...options.worker,
  } as WorkerOptions;
}

export async function startEdge(lifetime: Lifetime, options: EdgeOptions): Promise<Edge> {
  const logs: string[] = [];
  const settings = {
    host: "127.0.0.1",
    port: options.port ?? 0,
    cf: false,
    unsafeInspectDurableObjects: true,
    workers: [edgeWorker(options), ...(options.beside ?? [])],
    handleStructuredLogs: ({ message }: { message: string }) => logs.push(message),
    ...(options.storage ? { resourcePersistencePath: options.storage } : {}),
    ...(options.registry ? { unsafeDevRegistryPath: options.registry } : {}),
  } as V4MiniflareOptions;
  const miniflare = new Miniflare(convertV4MiniflareOptions(settings));
  whenOver(lifetime, () => miniflare.dispose());
  const url = (await miniflare.ready).href.replace(/\/$/, "");
  return {
    url,
    miniflare,
    logs,
    from:
      (address) =>
      (path, init = {}) => {
        const headers = new Headers(init.headers);
        // Cloudflare drops what a client sends here; the local runtime does not, so a test can say who it is.
        headers.set("CF-Connecting-IP", address);
        return fetch(url + path, { redirect: "manual", ...init, headers });
      },
    evict: (name = counterName) => miniflare.unsafeEvictDurableObject(edgeName, "AddressCounter", { name }),
  };
}

/** What the counting object has cost since it was last made: calls, rows written, addresses held. */
export async function costs(
  edge: Edge,
  name = counterName,
): Promise<{ calls: number; rows: number; addresses: number }> {
  const namespace = (await edge.miniflare.getDurableObjectNamespace("ADDRESS_COUNTERS", edgeName)) as unknown as {
    get(id: unknown): { costs(): Promise<[number, number, number]> };
    idFromName(name: string): unknown;
  };
  const [calls, rows, addresses] = await namespace.get(namespace.idFromName(name)).costs();
  return { calls, rows, addresses };
}
