import assert from "node:assert/strict";
import { cpSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { after, test } from "node:test";
import {
  convertV4MiniflareOptions,
  Miniflare,
  type V4MiniflareOptions,
  type V4WorkerOptions as WorkerOptions,
} from "miniflare";
import { unstable_getMiniflareWorkerOptions, unstable_readConfig } from "wrangler";
import { buildRustWorker } from "../../scripts/lib/edge.ts";
import { wrangler, wranglerEnvironment } from "../../scripts/lib/edge-server.ts";
import { root } from "../../scripts/lib/paths.ts";
import { run } from "../../scripts/lib/process.ts";
import { skipWithoutGo } from "../harness/go.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { startGo } from "./go.ts";
import { buildPackage, checkTypes, checkWranglerTypes } from "./package.ts";
import type { Variable } from "./workerd.ts";

// The Workers in examples/, built by wrangler with the package weir-edge installed, in workerd. The page and the
// package's README show parts of these files.

const examples = join(root, "examples");
const edge = await buildPackage();
const secrets = freshSecrets();

/** A copy of an example, with its packages installed. */
function projectOf(example: string, packages: string[] = []): string {
  const project = edge.install(example, packages);
  cpSync(join(examples, example), project, {
    recursive: true,
    filter: (path) => !["node_modules", ".wrangler", ".dev.vars"].includes(basename(path)),
  });
  return project;
}

/** A Worker as `wrangler deploy` bundles it. */
async function bundled(config: string, variables: Record<string, Variable>): Promise<WorkerOptions> {
  const folder = dirname(config);
  const output = join(folder, "bundle");
  await run(process.execPath, [wrangler, "deploy", "--dry-run", "--outdir", output, "--config", config], {
    cwd: folder,
    env: wranglerEnvironment(),
  });
  const { workerOptions, main } = unstable_getMiniflareWorkerOptions(config);
  const entry = basename(String(main)).replace(/\.ts$/, ".js");
  const wasm = readdirSync(output).filter((name) => name.endsWith(".wasm"));
  return {
    ...(workerOptions as Partial<WorkerOptions>),
    name: unstable_readConfig({ config }).name,
    modulesRoot: output,
    modules: [
      { type: "ESModule", path: join(output, entry) },
      ...wasm.map((name) => ({ type: "CompiledWasm", path: join(output, name) })),
    ],
    bindings: {
      ...(workerOptions.bindings as Record<string, Variable>),
      // An object on an overloaded machine must not count as one that hangs.
      COUNTER_TIMEOUT_MS: "20000",
      ...variables,
    },
  } as WorkerOptions;
}

type Ask = (path: string, init?: RequestInit) => Promise<Response>;

/**
 * Starts an example. The first configuration is that of the Worker that clients reach. `changes` replace parts of all
 * configurations.
 */
async function start(
  project: string,
  configs: string[],
  variables: Record<string, Variable>,
  changes: Partial<WorkerOptions> = {},
): Promise<Ask> {
  const workers = [];
  for (const config of configs) workers.push({ ...(await bundled(join(project, config), variables)), ...changes });
  const settings = { host: "127.0.0.1", port: 0, cf: false, workers } as V4MiniflareOptions;
  const miniflare = new Miniflare(convertV4MiniflareOptions(settings));
  after(() => miniflare.dispose());
  const url = (await miniflare.ready).href.replace(/\/$/, "");
  return (path, init = {}) => {
    const headers = new Headers(init.headers);
    headers.set("CF-Connecting-IP", "203.0.113.1");
    return fetch(url + path, { redirect: "manual", ...init, headers });
  };
}

/** The number of responses with each status, to 30 requests at once. */
async function thirty(ask: Ask, path: string, init?: RequestInit): Promise<Record<number, number>> {
  const answers = await Promise.all(Array.from({ length: 30 }, () => ask(path, init)));
  const counts: Record<number, number> = {};
  for (const { status } of answers) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

const signedIn = async (user: string, claims = {}): Promise<RequestInit> => ({
  headers: { Authorization: `Bearer ${await tokenFor(secrets.jwt, user, claims)}` },
});
const both = { JWT_SECRET: secrets.jwt, EDGE_SECRET: secrets.edge };

test("the Hono API limits anonymous clients and knows users", async () => {
  const project = projectOf("hono-api", ["hono"]);
  await checkTypes(project, "src/index.ts");
  await checkWranglerTypes(project, "src/index.ts");
  const ask = await start(project, ["wrangler.toml"], { WEIR_JWT_SECRET: secrets.jwt });
  assert.deepEqual(await (await ask("/hello")).json(), { hello: "you" });
  assert.deepEqual(await thirty(ask, "/hello"), { 200: 9, 429: 21 });
  assert.deepEqual(await (await ask("/hello", await signedIn("anne"))).json(), { hello: "anne" });
});

test("the Worker with a limit per API key counts each key", async () => {
  const project = projectOf("only-limits");
  await checkTypes(project, "src/index.ts");
  await checkWranglerTypes(project, "src/index.ts");
  const ask = await start(project, ["wrangler.toml"], {});
  const withKey = (key: string): RequestInit => ({ headers: { "X-API-Key": key } });
  const first = await ask("/hello", withKey("a"));
  assert.deepEqual(
    [await first.json(), first.headers.get("ratelimit"), first.headers.get("ratelimit-policy")],
    [{ path: "/hello" }, '"api";r=59;t=60', '"api";q=60;w=60'],
  );
  assert.deepEqual(await thirty(ask, "/hello", withKey("a")), { 200: 30 });
  assert.deepEqual(await thirty(ask, "/hello", withKey("a")), { 200: 29, 429: 1 });
  assert.equal((await ask("/hello", withKey("b"))).status, 200);
});

test("the Next.js site keeps its pages, files, cookies and redirects", async () => {
  const ask = await start(projectOf("nextjs-site"), ["wrangler.toml", "site/wrangler.toml"], both);
  assert.match(await (await ask("/")).text(), /Hello there/);
  const file = await ask("/_next/static/main.js");
  assert.equal(await file.text(), readFileSync(join(examples, "nextjs-site/site/assets/_next/static/main.js"), "utf8"));
  const login = await ask("/login", { method: "POST" });
  assert.equal(login.status, 303);
  assert.equal(login.headers.get("location"), `https://${new URL(login.url).host}/`);
  const [cookie = ""] = login.headers.getSetCookie();
  assert.match(await (await ask("/", { headers: { cookie } })).text(), /Hello again/);
  assert.deepEqual(await (await ask("/api/hello", { headers: { cookie } })).json(), { hello: "anne" });
  assert.deepEqual(await thirty(ask, "/api/hello"), { 200: 9, 429: 21 });
  assert.deepEqual(await thirty(ask, "/"), { 200: 30 });
});

test("the Go backend accepts only the edge's requests", {
  skip: skipWithoutGo(),
  timeout: 120_000,
}, async (context) => {
  const project = projectOf("go-backend");
  const backend = await startGo(context, { folder: project }, { PORT: "0", EDGE_SECRET: secrets.edge });
  const ask = await start(project, ["wrangler.toml"], { ...both, ORIGIN_URL: backend });

  assert.equal((await fetch(`${backend}/v1/status`)).status, 403);
  assert.deepEqual(await (await ask("/v1/status")).json(), { status: "ok" });
  assert.deepEqual(await thirty(ask, "/v1/quotes", { method: "POST" }), { 200: 10, 429: 20 });
  assert.equal((await ask("/v1/orders", { method: "POST" })).status, 401);
  const order = await ask("/v1/orders", { method: "POST", ...(await signedIn("anne", { org: { id: "acme" } })) });
  assert.deepEqual(await order.json(), { buyer: "anne" });
  assert.equal((await ask("/v1/nowhere")).status, 404, "from the backend");
  assert.equal((await ask("/debug")).status, 404, "from the edge");
});

test("the existing Worker reads the user from the assertion", async () => {
  const ask = await start(projectOf("existing-worker"), ["wrangler.toml", "existing/wrangler.toml"], both);
  assert.deepEqual(await (await ask("/api/me?a=b")).json(), { user: null, address: "203.0.113.1" });
  assert.deepEqual(await thirty(ask, "/api/me"), { 200: 9, 429: 21 });
  assert.deepEqual(await (await ask("/api/me", await signedIn("anne"))).json(), {
    user: "anne",
    address: "203.0.113.1",
  });
});

/** The entry point that worker-build adds to a Worker in Rust. As there, AddressCounter does not extend DurableObject. */
const shim = `import { WorkerEntrypoint } from "cloudflare:workers";
import * as program from "./program.js";
export default class extends WorkerEntrypoint {
  fetch(request) {
    return program.fetch(request, this.env, this.ctx);
  }
}
export const { AddressCounter } = program;`;

test("the Worker in Rust limits clients and knows users", {
  timeout: 600_000,
}, async () => {
  const project = projectOf("rust-worker");
  const [build, config] = [join(project, "build"), join(project, "wrangler.toml")];
  await buildRustWorker(build);
  renameSync(join(build, "index.js"), join(build, "program.js"));
  writeFileSync(join(build, "index.js"), shim);
  const withBuild = readFileSync(config, "utf8");
  writeFileSync(config, withBuild.replace(/^\[build\]\ncommand = .*\n/m, ""));
  assert.notEqual(readFileSync(config, "utf8"), withBuild);

  const ask = await start(project, ["wrangler.toml"], { JWT_SECRET: secrets.jwt });
  assert.deepEqual(await thirty(ask, "/hello"), { 200: 10, 429: 20 });
  const anne = await signedIn("anne");
  assert.equal(await (await ask("/hello", anne)).text(), "hello anne");
  assert.deepEqual(await thirty(ask, "/export", { ...anne, method: "POST" }), { 200: 5, 429: 25 });
  const left = async (method: string, user = anne): Promise<string> =>
    (await ask("/export", { ...user, method })).text();
  assert.equal(await left("GET"), "Too many exports");
  assert.equal(await left("DELETE"), "1 exports left", "a refund");
  assert.equal(await left("GET"), "1 exports left", "peeking counts nothing");
  assert.equal(await left("POST"), "0 exports left");
  assert.equal(await left("PUT"), "5 exports left", "a reset");
  assert.equal(await left("POST", await signedIn("bert")), "4 exports left");

  const uncounted = await start(project, ["wrangler.toml"], { JWT_SECRET: secrets.jwt }, { durableObjects: {} });
  const failed = await uncounted("/export", anne);
  assert.equal(failed.status, 500);
  assert.equal(((await failed.json()) as { detail: string }).detail, "The handler failed. Its error is in the log.");
});

test("the documentation shows the code of the examples", () => {
  const files = (folder: string): string[] =>
    readdirSync(folder, { withFileTypes: true })
      .filter(({ name }) => name !== "node_modules")
      .flatMap((entry) => {
        const path = join(folder, entry.name);
        return entry.isDirectory() ? files(path) : [path];
      });
  const sources = files(examples).filter((path) => /\.(ts|js|go|rs|toml)$/.test(path));
  const shown = (page: string): string[] =>
    [...readFileSync(join(root, page), "utf8").matchAll(/^```(ts|js|go|rust|toml)\n(.*?)^```/gms)].map(
      ([, language, code = ""]) => {
        const source = sources.find((path) => readFileSync(path, "utf8").includes(code));
        return `${language}: ${source ? relative(examples, source) : "none"}`;
      },
    );
  assert.deepEqual(shown("docs/how-to/put-weir-in-front.md"), [
    "toml: go-backend/wrangler.toml",
    "toml: none", // a backend with its own sessions
    "toml: nextjs-site/wrangler.toml",
    "toml: existing-worker/wrangler.toml",
    "ts: hono-api/src/index.ts",
    "rust: rust-worker/src/lib.rs",
    "go: go-backend/verify.go",
    "js: existing-worker/existing/src/verify.js",
    "js: existing-worker/existing/src/index.js",
  ]);
  const readme = shown("packages/weir-edge/README.md");
  assert.deepEqual(readme, [
    "ts: none",
    "ts: hono-api/src/index.ts",
    "toml: hono-api/wrangler.toml",
    "ts: only-limits/src/index.ts",
  ]);
  for (const example of ["hono-api", "only-limits", "nextjs-site", "go-backend", "existing-worker"]) {
    const { dependencies } = JSON.parse(readFileSync(join(examples, example, "package.json"), "utf8"));
    assert.equal(basename(dependencies["weir-edge"]), edge.tarball);
  }
});
