import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { until } from "../harness/until.ts";
import { startOrigin } from "./origin.ts";
import { buildPackage, checkTypes, from, startProject } from "./package.ts";

// Workers with the package weir-edge and their own handler, in workerd.

const edge = await buildPackage();
const secrets = freshSecrets();

test("errors of the handler get 500, and the log has their messages", async () => {
  const worker = await startProject(
    { after },
    edge,
    "failing",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir();
    const failures: Record<string, () => never> = {
      "/error": () => { throw new Error("the cart is locked"); },
      // The edge rejects with this text when a body is too large.
      "/text": () => { throw "too large"; },
      "/nothing": () => undefined as never,
      "/object": () => ({ ok: true }) as never,
    };
    export default {
      fetch: (request: Request, env: object, ctx: unknown) =>
        weir.handle(request, env, ctx, async (request) => failures[new URL(request.url).pathname]!()),
    };`,
  );
  for (const [path, detail] of [
    ["/error", "the cart is locked"],
    ["/text", "too large"],
    ["/nothing", "the handler returned a value of type undefined; expected a Response"],
    ["/object", "the handler returned a value of type object; expected a Response"],
  ] as const) {
    const answer = await fetch(worker.url + path, from("203.0.113.1"));
    const problem = (await answer.json()) as { status: number; detail: string; request_id: string };
    assert.equal(answer.status, 500, path);
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    assert.deepEqual(
      [problem.status, problem.detail, problem.request_id],
      [500, "The handler failed. Its error is in the log.", answer.headers.get("x-request-id")],
    );
    const [line = ""] = await worker.logged(problem.request_id);
    const { event, detail: logged } = JSON.parse(line) as { event: string; detail: string };
    assert.deepEqual([event, logged], ["handler_failed", detail]);
  }
});

test("unhandled errors of the Worker do not affect requests", async () => {
  const worker = await startProject(
    { after },
    edge,
    "unhandled",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir({ anonLimit: 100 });
    let waiting = 0;
    let released = false;
    const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
    const paths: Record<string, () => unknown> = {
      "/slow": async () => {
        waiting++;
        while (!released) await pause();
      },
      "/waiting": () => waiting,
      "/range": () => void (async () => {
        await null;
        new Date(NaN).toISOString();
      })(),
      "/trap": () => void (async () => {
        await null;
        throw new WebAssembly.RuntimeError("of another module");
      })(),
      "/release": () => (released = true),
    };
    export default {
      fetch: (request: Request, env: object, ctx: unknown) =>
        weir.handle(request, env, ctx, async (request) =>
          new Response(String(await paths[new URL(request.url).pathname]!()))),
    };`,
  );
  const ask = (path: string): Promise<Response> => fetch(worker.url + path, from("203.0.113.1"));
  const slow = [ask("/slow"), ask("/slow"), ask("/slow")];
  await until("the slow requests to wait", async () => (await (await ask("/waiting")).text()) === "3");
  for (const path of ["/range", "/trap", "/release"]) assert.equal((await ask(path)).status, 200, path);
  assert.deepEqual(
    (await Promise.all(slow)).map((answer) => answer.status),
    [200, 200, 200],
  );
});

const hono = (app: string) => `import { Hono } from "hono";
  import { AddressCounter } from "weir-edge";
  import { weir, type WeirVariables } from "weir-edge/hono";
  export { AddressCounter };
  const app = new Hono<{ Variables: WeirVariables }>();
  ${app}`;

test("the handler gets the client's request.cf", async () => {
  const cf = "(request: Request) => Response.json((request as { cf?: object }).cf ?? null)";
  const plain = `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir();
    const handler = ${cf};
    export default {
      fetch: (request: Request, env: object, ctx: unknown) => weir.handle(request, env, ctx, handler),
    };`;
  const middleware = hono(`app.use(weir());
    app.get("/", (c) => (${cf})(c.req.raw));
    export default app;`);
  for (const [name, source] of [
    ["cf-plain", plain],
    ["cf-hono", middleware],
  ] as const) {
    const { miniflare } = await startProject({ after }, edge, name, source);
    const answer = await miniflare.dispatchFetch("http://shop.example/", { cf: { country: "DE" } });
    assert.equal(((await answer.json()) as { country?: string } | null)?.country, "DE", name);
  }
});

test("Hono's app.request works without an execution context", async () => {
  const worker = await startProject(
    { after },
    edge,
    "hono-request",
    hono(`app.use(weir());
    app.get("/", (c) => c.text("hello " + c.get("caller").address));
    export default { fetch: (request: Request, env: object) => app.request("/", { headers: request.headers }, env) };`),
  );
  assert.equal(await (await fetch(worker.url, from("203.0.113.1"))).text(), "hello 203.0.113.1");
});

/** The numbers of responses with each status, to 12 requests at once from one address. */
async function twelve(url: string): Promise<Record<number, number>> {
  const answers = await Promise.all(Array.from({ length: 12 }, () => fetch(url, from("203.0.113.1"))));
  const counts: Record<number, number> = {};
  for (const { status } of answers) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

test("each weir() has its own options and counts", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "several",
    hono(`app.use("/login", weir({ anonLimit: 3 }));
    app.use("/api/*", weir({ anonLimit: 10, identityHeaders: "X-Team" }));
    app.use("/same/*", weir({ identityHeaders: "X-Team", anonLimit: 10 }));
    app.use("/loose/*", weir({ routes: [{ path: "/loose/*" }], anonReadLimit: 5 }));
    app.use("/looser/*", weir({ routes: [{ path: "/looser/*" }], anonReadLimit: 7 }));
    app.get("*", (c) => c.text(c.req.header("x-team") ?? "none"));
    export default app;`),
  );
  const team = async (path: string) =>
    await (await fetch(url + path, from("203.0.113.2", { "X-Team": "blue" }))).text();
  assert.deepEqual([await team("/login"), await team("/api/x")], ["blue", "none"]);
  assert.deepEqual(await twelve(`${url}/login`), { 200: 3, 429: 9 });
  assert.deepEqual(await twelve(`${url}/api/x`), { 200: 10, 429: 2 });
  assert.deepEqual(await twelve(`${url}/same/x`), { 429: 12 }, "equal options are one edge");
  assert.deepEqual(await twelve(`${url}/loose/x`), { 200: 5, 429: 7 });
  assert.deepEqual(await twelve(`${url}/looser/x`), { 200: 7, 429: 5 });
});

test("a request may pass two edges", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "nested",
    hono(`app.use(weir({ anonLimit: 8 }));
    app.use("/login", weir({ anonLimit: 3 }));
    app.get("*", (c) => c.text(c.get("caller").address));
    export default app;`),
  );
  const login = () => fetch(`${url}/login`, from("203.0.113.2"));
  assert.equal(await (await login()).text(), "203.0.113.2");
  assert.deepEqual(await twelve(`${url}/login`), { 200: 3, 429: 9 });
  assert.deepEqual(await twelve(`${url}/x`), { 429: 12 });
});

test("a counting object of an edge that does not exist reports the cause", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "late",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    createWeir();
    interface Env { ADDRESS_COUNTERS: { getByName(name: string): { take(...key: number[]): Promise<number> } } }
    export default {
      fetch: (request: Request, env: Env): Promise<Response> =>
        env.ADDRESS_COUNTERS.getByName("any-0@1").take(8, 0, 0, 1)
          .then(() => new Response("counted"), (error: Error) => new Response(error.message)),
    };`,
  );
  assert.match(await (await fetch(url)).text(), /any-0@1 .* call it when the module is loaded/);
});

test("the limits of users and prefixes apply, and no path is reserved", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "limits",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir({ userLimit: 2, userWindow: 3600, anonLimit: 3, anonPrefixLimit: 4, anonWindow: 3600 });
    export default {
      fetch: (request: Request, env: object, ctx: unknown) => weir.handle(request, env, ctx, () => new Response("ok")),
    };`,
    { bindings: { WEIR_JWT_SECRET: secrets.jwt } },
  );
  const statuses = async (init: RequestInit, paths: string[]) => {
    const found = [];
    for (const path of paths) found.push((await fetch(url + path, init)).status);
    return found;
  };
  const authorization = `Bearer ${await tokenFor(secrets.jwt, "anne")}`;
  assert.deepEqual(
    await statuses(from("203.0.113.1", { authorization }), ["/a", "/b", "/c", "/d"]),
    [200, 200, 429, 429],
  );
  const reserved = ["/api/dev/tools", "/api/edge/nodes", "/c", "/d"];
  assert.deepEqual(await statuses(from("2001:db8:1:1::1"), reserved), [200, 200, 200, 429]);
  assert.deepEqual(await statuses(from("2001:db8:1:2::1"), ["/a", "/b"]), [200, 429], "of the /48");
});

test("a compatibility date that is too old is named in the error", async () => {
  const source = `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const created = (() => {
      try {
        return createWeir();
      } catch (error) {
        return String(error);
      }
    })();
    export default {
      fetch: (request: Request, env: object, ctx: unknown) => typeof created === "string"
        ? new Response(created)
        : created.handle(request, env, ctx, () => new Response("ok")),
    };`;
  for (const [date, text] of [
    [
      "2024-04-02",
      "Error: createWeir(): the compatibility_date of the Worker is too old; expected 2024-04-03 or later",
    ],
    ["2024-04-03", "ok"],
  ] as const) {
    const { url } = await startProject({ after }, edge, `own-${date}`, source, { compatibilityDate: date });
    assert.equal(await (await fetch(url, from("203.0.113.1"))).text(), text);
  }
  const forwarding = `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir();
    export default { fetch: (request: Request, env: object, ctx: unknown) => weir.handle(request, env, ctx) };`;
  const origin = await startOrigin({ after });
  const bindings = {
    WEIR_ORIGIN_URL: origin.url,
    WEIR_JWT_SECRET: secrets.jwt,
    WEIR_EDGE_SECRET: origin.secrets.edge,
  };
  for (const [date, status] of [
    ["2024-11-10", 502],
    ["2024-11-11", 200],
  ] as const) {
    const changes = { compatibilityDate: date, bindings };
    const worker = await startProject({ after }, edge, `forwarding-${date}`, forwarding, changes);
    assert.equal((await fetch(`${worker.url}/api/jobs/1`, from("203.0.113.1"))).status, status, date);
    if (status === 502) await worker.logged("compatibility_date of the Worker is too old; expected 2024-11-11");
  }
});

test("options override WEIR_ variables, and others are ignored", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "variables",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir({ anonLimit: 3 });
    export default {
      fetch: (request: Request, env: object, ctx: unknown) => weir.handle(request, env, ctx, () => new Response("ok")),
    };`,
    {
      bindings: {
        ISSUER: "https://auth.example",
        CORS_ORIGIN: "https://app.example",
        JWKS_URI: "https://auth.example/jwks",
        DEVELOPMENT: "1",
        ROUTES: "/a,/b",
        JWT_SECRET: "short",
        ORIGIN_URL: "db.internal",
        METRICS: "on",
        ANON_LIMIT: "1",
        WEIR_ANON_LIMIT: "2",
        WEIR_ANON_WINDOW: "3600",
      },
    },
  );
  const answers = [];
  for (let sent = 0; sent < 4; sent++) answers.push(await fetch(url, from("203.0.113.1")));
  assert.deepEqual(
    answers.map((answer) => answer.status),
    [200, 200, 200, 429],
  );
  assert.equal(answers[0]?.headers.get("ratelimit-policy"), '"anon";q=3;w=3600');
});

test("a misspelt WEIR_ variable is an error", async () => {
  const worker = await startProject(
    { after },
    edge,
    "misspelt",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir();
    export default {
      fetch: (request: Request, env: object, ctx: unknown) => weir.handle(request, env, ctx, () => new Response("ok")),
    };`,
    { bindings: { WEIR_ANON_LIMTI: "2" } },
  );
  assert.equal((await fetch(worker.url, from("203.0.113.1"))).status, 500);
  await worker.logged("WEIR_ANON_LIMTI is not a setting; did you mean WEIR_ANON_LIMIT?");
});

test("a handler may answer an upload before it has read it", async () => {
  const source = (options: string) => `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir(${options});
    const handlers: Record<string, () => Response> = {
      "/": () => new Response("too many", { status: 429 }),
      "/throws": () => {
        throw new Error("a bug");
      },
    };
    export default {
      fetch: (request: Request, env: object, ctx: unknown) =>
        weir.handle(request, env, ctx, () => handlers[new URL(request.url).pathname]!()),
    };`;
  for (const [name, options] of [
    ["early", "{ anonLimit: 100 }"],
    ["early-limited", "{ anonLimit: 100, maxBodyBytes: 50_000_000 }"],
  ] as const) {
    const { url } = await startProject({ after }, edge, name, source(options));
    for (let sent = 0; sent < 8; sent++) {
      const answer = await fetch(url, { ...from("203.0.113.1"), method: "POST", body: Buffer.alloc(20_000_000) });
      assert.deepEqual([answer.status, await answer.text()], [429, "too many"], `${name} ${sent}`);
    }
    for (let sent = 0; sent < 24; sent++) {
      const upload = { ...from("203.0.113.1"), method: "POST", body: Buffer.alloc(20_000_000) };
      assert.equal((await fetch(`${url}/throws`, upload)).status, 500, `${name} ${sent}`);
    }
  }
});

test("the handler decides on CORS, caching and bodies", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "untouched",
    hono(`app.use(weir({ anonLimit: 10, anonWindow: 3600 }));
    app.use(cors({ origin: "https://app.example.com", credentials: true, allowHeaders: ["X-Own"] }));
    app.get("/", (c) => c.text("ok", 200, { "Cache-Control": "public, max-age=600", "X-Request-Id": "own" }));
    app.get("/own", (c) => c.text("ok", 200, { RateLimit: '"own";r=5;t=9', "RateLimit-Policy": '"own";q=9;w=9' }));
    app.post("/", async (c) => c.text(String((await c.req.arrayBuffer()).byteLength)));
    export default app;`).replace('from "hono";', 'from "hono"; import { cors } from "hono/cors";'),
  );
  const evil = await fetch(url, from("203.0.113.1", { Origin: "https://evil.example" }));
  assert.notEqual(evil.headers.get("access-control-allow-origin"), "https://evil.example");
  const app = await fetch(url, from("203.0.113.1", { Origin: "https://app.example.com" }));
  assert.equal(app.headers.get("access-control-allow-origin"), "https://app.example.com");
  assert.equal(app.headers.get("access-control-allow-credentials"), "true");
  assert.equal(app.headers.get("cache-control"), "public, max-age=600");
  assert.equal(app.headers.get("x-request-id"), "own");
  assert.equal(app.headers.get("ratelimit"), '"anon";r=8;t=3600');
  for (const name of ["access-control-expose-headers", "server-timing", "x-content-type-options"])
    assert.equal(app.headers.get(name), null, name);
  const preflight = await fetch(url, {
    method: "OPTIONS",
    headers: {
      "CF-Connecting-IP": "203.0.113.1",
      Origin: "https://app.example.com",
      "Access-Control-Request-Method": "POST",
    },
  });
  assert.equal(preflight.headers.get("access-control-allow-headers"), "X-Own");
  const own = await fetch(`${url}/own`, from("203.0.113.1"));
  assert.equal(own.headers.get("ratelimit"), '"own";r=5;t=9');
  assert.equal(own.headers.get("ratelimit-policy"), '"own";q=9;w=9');
  const large = await fetch(url, { ...from("203.0.113.1"), method: "POST", body: Buffer.alloc(300_000) });
  assert.equal(await large.text(), "300000");
  assert.equal(large.headers.get("ratelimit"), '"anon";r=6;t=3600', "the preflight did not count");
});

test("settings for CORS, bodies and times apply to a handler", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "asked-for",
    hono(`app.use(weir({ corsOrigins: "https://app.example.com", maxBodyBytes: 1000, originTimeoutMs: 200 }));
    app.get("/slow", () => new Promise(() => {}));
    app.all("*", (c) => c.text("ok", 200, { "Access-Control-Allow-Origin": "*" }));
    export default app;`),
  );
  const answer = await fetch(url, from("203.0.113.1", { Origin: "https://app.example.com" }));
  assert.equal(answer.headers.get("access-control-allow-origin"), "https://app.example.com");
  const other = await fetch(url, from("203.0.113.1", { Origin: "https://evil.example" }));
  assert.equal(other.headers.get("access-control-allow-origin"), null);
  const large = await fetch(url, { ...from("203.0.113.1"), method: "POST", body: Buffer.alloc(1001) });
  assert.equal(large.status, 413);
  assert.equal((await fetch(`${url}/slow`, from("203.0.113.1"))).status, 504);
});

test("unknown options are errors that list all of them", async () => {
  const { url } = await startProject(
    { after },
    edge,
    "options",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const error = (() => {
      try {
        // @ts-expect-error: the type reports the first of them.
        createWeir({ limits: 1, anonLimit: 1, rateLimit: 2, denyList: [], jwksURL: "" });
        return "none";
      } catch (error) {
        return String(error);
      }
    })();
    export default { fetch: () => new Response(error) };`,
  );
  assert.equal(
    await (await fetch(url)).text(),
    "TypeError: createWeir(): unknown options: limits (the nearest option is anonLimit), rateLimit (the nearest option " +
      "is anonLimit), denyList (the nearest option is deny), jwksURL (the nearest option is jwksUrl)",
  );
});

/** The texts of a list in a Rust file. */
function listIn(file: string, start: RegExp): string[] {
  const [, list = ""] = new RegExp(`${start.source}(.*?)\\];`, "s").exec(readFileSync(join(root, file), "utf8")) ?? [];
  return [...list.matchAll(/"(\w+)"/g)].map(([, name = ""]) => name);
}

const settings = listIn("src/settings.rs", /SETTINGS: \[&str; \d+\] = \[/);
const routeMembers = listIn("policy/src/route.rs", /KNOWN: \[&str; \d+\] = \[/);

test("the reference has all settings and members of routes", () => {
  const page = readFileSync(join(root, "docs", "reference", "edge-settings.md"), "utf8");
  const rows = [...page.matchAll(/^\| `(\w+)` \|/gm)].map(([, name = ""]) => name);
  assert.ok(settings.length > 40 && routeMembers.length > 6);
  assert.deepEqual(rows.filter((name) => /^[A-Z]/.test(name) && settings.includes(name)).sort(), [...settings].sort());
  assert.deepEqual(rows.filter((name) => /^[a-z]/.test(name)).sort(), [...routeMembers].sort());
});

test("the types have an option for each setting, and all members of a route", async () => {
  const names = settings;
  const project = edge.install("types");
  writeFileSync(
    join(project, "index.ts"),
    `import type { Options } from "weir-edge";
    type Name = "${names.join('" | "')}";
    type Upper = Extract<keyof Options, Uppercase<string>>;
    export const all: [Name, Upper] extends [Upper, Name] ? true : false = true;
    import type { Route } from "weir-edge";
    type Member = "${routeMembers.join('" | "')}";
    export const route: [Member, keyof Route] extends [keyof Route, Member] ? true : false = true;
    export const anyAddress: Route = { path: "/", limits: [{ by: "any_address", limit: 1, window: "1m" }] };`,
  );
  await checkTypes(project, "index.ts");
});
