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
  const settings = settingsOf(process.argv.slice(2));
  if (!settings.isDryRun) requireOrigin(settings);
  requireReadLimit(settings);
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

interface RateLimiter {
  name: string;
  simple: { limit: number; period: number };
}

interface Settings {
  env: string | undefined;
  isDryRun: boolean;
  config: ReturnType<typeof readConfig>;
  /** The value of a variable on the command line, or in wrangler.toml. */
  value(name: string): string;
}

function settingsOf(args: string[]): Settings {
  const { values } = parseArgs({
    args,
    options: {
      env: { type: "string", short: "e" },
      var: { type: "string", multiple: true },
      "dry-run": { type: "boolean" },
    },
    // wrangler checks the other options.
    strict: false,
  });
  const env = typeof values.env === "string" ? values.env.replace(/^=/, "") : process.env.CLOUDFLARE_ENV;
  const config = readConfig({ config: join(root, "wrangler.toml"), env });
  return {
    env,
    isDryRun: values["dry-run"] === true,
    config,
    value(name) {
      const set = values.var?.map(String).findLast((pair) => pair.startsWith(`${name}:`));
      return set?.slice(name.length + 1) ?? String(config.vars[name] ?? "");
    },
  };
}

/** The address in wrangler.toml is a development origin, which a deployed edge cannot reach, or it is missing. */
function requireOrigin({ env, value }: Settings): void {
  const origin = value("ORIGIN_URL");
  if (origin !== "" && !/^https?:\/\/(127\.|localhost|\[::1\])/.test(origin)) return;
  const where = env ? `ORIGIN_URL of ${env} in wrangler.toml` : "ORIGIN_URL in wrangler.toml";
  throw new Failure(
    origin === "" ? `${where} is not set` : `${where} is ${origin}, which a deployed edge cannot reach`,
    "set the origin's address: npm run deploy -- --var ORIGIN_URL:https://origin.example.com",
  );
}

/** A Worker cannot read the limit of a native limiter, so the two numbers can only be compared here. */
function requireReadLimit({ config, value }: Settings): void {
  const limiter = (config.ratelimits as RateLimiter[]).find(({ name }) => name === "READ_LIMITER")?.simple;
  if (!limiter) return;
  const limit = Number(value("ANON_READ_LIMIT") || 120);
  const allowed = (limiter.limit * 60) / limiter.period;
  if (limit <= allowed) return;
  throw new Failure(
    `ANON_READ_LIMIT is ${limit} a minute, but READ_LIMITER in wrangler.toml allows ${allowed}`,
    "set both to the same number",
  );
}
