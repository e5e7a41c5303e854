import { join } from "node:path";
import { createTestHarness, type WorkerHandle } from "wrangler";
import { root } from "../../scripts/lib/paths.ts";
import type { Secrets } from "./identity.ts";
import { type Lifetime, whenOver } from "./lifetime.ts";
import { showOnFailure } from "./logs.ts";

export interface Edge {
  url: string;
  /** For `evictDurableObject`, `getDurableObjectStorage`, `getEnv` and the like. */
  worker: WorkerHandle;
  /** The Worker's console output. */
  logs(): string;
  /**
   * A request as if from this client address. Cloudflare overwrites CF-Connecting-IP. The local runtime sets it only
   * when it is missing, to 127.0.0.1, so a test chooses the address by sending the header.
   */
  from(address: string): (path: string, init?: RequestInit) => Promise<Response>;
  close(): Promise<void>;
}

/**
 * The edge in workerd, configured by wrangler.toml, with separate bindings. It runs the output of `npm run build:edge`,
 * so it starts within about a second.
 */
export async function startEdge(
  lifetime: Lifetime,
  options: { originUrl: string; secrets: Secrets; vars?: Record<string, string> },
): Promise<Edge> {
  const harness = createTestHarness({
    root,
    workers: [
      {
        configPath: join(root, "wrangler.toml"),
        vars: { ORIGIN_URL: options.originUrl, ...options.vars },
        secrets: { JWT_SECRET: options.secrets.jwt, EDGE_SECRET: options.secrets.edge },
      },
    ],
  });
  const { url } = await harness.listen();
  whenOver(lifetime, () => harness.close());
  const logs = (): string =>
    harness
      .getLogs()
      .map((entry) => `${entry.level}: ${entry.message}`)
      .join("\n");
  showOnFailure("the edge", logs);
  const base = url.href.replace(/\/$/, "");
  return {
    url: base,
    worker: harness.getWorker(),
    logs,
    from:
      (address) =>
      (path, init = {}) => {
        const headers = new Headers(init.headers);
        headers.set("CF-Connecting-IP", address);
        // Over the wire like any client, with Node's own fetch.
        return fetch(base + path, { redirect: "manual", ...init, headers });
      },
    close: () => harness.close(),
  };
}
