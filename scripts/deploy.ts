import { spawn } from "node:child_process";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { unstable_readConfig as readConfig } from "wrangler";
import { buildEdge } from "./lib/edge.ts";
import { wrangler, wranglerEnvironment } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { root } from "./lib/paths.ts";
import { exitCodeOf } from "./lib/process.ts";

await runMain(async () => {
  requireOrigin(process.argv.slice(2));
  await buildEdge();
  // With CI=1, wrangler does not ask for a login.
  const { CI: _, ...env } = wranglerEnvironment();
  const ci = process.env.CI;
  const child = spawn(process.execPath, [wrangler, "deploy", ...process.argv.slice(2)], {
    cwd: root,
    env: ci ? { ...env, CI: ci } : env,
    stdio: "inherit",
  });
  return exitCodeOf(child);
});

/** The address in wrangler.toml is that of a development origin, which a deployed edge cannot reach, or none. */
function requireOrigin(args: string[]): void {
  const { values } = parseArgs({
    args,
    options: {
      env: { type: "string", short: "e" },
      "dry-run": { type: "boolean" },
    },
    // The others are wrangler's to judge.
    strict: false,
  });
  if (values["dry-run"] || args.some((arg) => arg.includes("ORIGIN_URL:"))) return;
  const env = typeof values.env === "string" ? values.env.replace(/^=/, "") : process.env.CLOUDFLARE_ENV;
  const { vars } = readConfig({ config: join(root, "wrangler.toml"), env });
  const origin = String(vars.ORIGIN_URL ?? "");
  if (origin !== "" && !/^https?:\/\/(127\.|localhost|\[::1\])/.test(origin)) return;
  const where = env ? `ORIGIN_URL of ${env} in wrangler.toml` : "ORIGIN_URL in wrangler.toml";
  throw new Failure(
    origin === "" ? `${where} is not set` : `${where} is ${origin}, which a deployed edge cannot reach`,
    "say where the origin is: npm run deploy -- --var ORIGIN_URL:https://origin.example.com",
  );
}
