import { join } from "node:path";
import { quickly } from "./edge.ts";
import { logs, nodeModules, root, state } from "./paths.ts";
import { anyFree, host } from "./ports.ts";
import { Service } from "./process.ts";
import { edgeEnvFile } from "./secrets.ts";

/** Keeps `wrangler` from asking questions and sending metrics. */
export function wranglerEnvironment(env: NodeJS.ProcessEnv = process.env): NodeJS.ProcessEnv {
  return {
    ...env,
    CI: env.CI || "1",
    NO_COLOR: "1",
    FORCE_COLOR: "0",
    WRANGLER_SEND_METRICS: "false",
    // In development, the data about a request's origin are made up and need not be downloaded.
    CLOUDFLARE_CF_FETCH_ENABLED: "false",
    WRANGLER_HIDE_BANNER: "true",
    WRANGLER_LOG_PATH: join(logs, "wrangler"),
    // Where wrangler lists the Workers on this machine. Other projects must not find these.
    WRANGLER_REGISTRY_PATH: join(state, "registry"),
  };
}

export const wrangler = join(nodeModules, "wrangler", "bin", "wrangler.js");

/** Starts the edge as `wrangler dev` serves it. */
export async function startEdge(options: {
  port: number;
  originPort: number;
  onLine: (line: string) => void;
}): Promise<Service> {
  const args = [
    ...[wrangler, "dev", "--local", "--ip", host, "--port", String(options.port)],
    ...["--inspector-ip", host, "--inspector-port", String(await anyFree())],
    ...["--persist-to", join(state, "edge"), "--env-file", edgeEnvFile],
    ...["--var", `ORIGIN_URL:http://${host}:${options.originPort}`],
    "--show-interactive-dev-session=false",
  ];
  return new Service("edge", process.execPath, args, {
    cwd: root,
    env: { ...wranglerEnvironment(), ...quickly },
    grace: 8000,
    onLine: options.onLine,
  });
}
