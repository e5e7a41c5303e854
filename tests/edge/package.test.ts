import assert from "node:assert/strict";
import { after, test } from "node:test";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { buildPackage, from, startProject } from "./package.ts";

// The package weir-edge, built, and installed into empty projects. Each is bundled without Rust and runs in workerd.

const edge = await buildPackage();
const secrets = freshSecrets();

/** The URL of a Worker in a new project. */
const startWorker = async (name: string, source: string, bindings: Record<string, string> = {}): Promise<string> =>
  (await startProject({ after }, edge, name, source, { bindings })).url;

test("a Worker with its own handler counts exactly, and gets the caller", async () => {
  const url = await startWorker(
    "plain",
    `import { AddressCounter, createWeir, type Caller } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir({ anonLimit: 10 });
    export default {
      fetch: (request: Request, env: object, ctx: unknown): Promise<Response> =>
        weir.handle(request, env, ctx, async (request: Request, caller: Caller) =>
          Response.json({ caller, path: new URL(request.url).pathname, body: await request.text(),
            headers: [...request.headers.keys()] })),
    };`,
    { WEIR_JWT_SECRET: secrets.jwt },
  );
  const answers = await Promise.all(Array.from({ length: 30 }, () => fetch(`${url}/hello`, from("203.0.113.1"))));
  const statuses = answers.map(({ status }) => status);
  assert.equal(statuses.filter((status) => status === 200).length, 10);
  assert.equal(statuses.filter((status) => status === 429).length, 20);
  const other = await fetch(`${url}/a?b=c`, {
    ...from("203.0.113.2", { "X-User-Id": "root" }),
    method: "POST",
    body: "all of it",
  });
  const seen = (await other.json()) as { caller: object; path: string; body: string; headers: string[] };
  assert.deepEqual(seen.caller, {
    account: null,
    user: null,
    address: "203.0.113.2",
    tokenExpiresAt: null,
    claims: {},
  });
  assert.equal(seen.path, "/a");
  assert.ok(seen.headers.includes("host"));
  assert.equal(seen.body, "all of it");
  assert.ok(!seen.headers.includes("x-user-id") && !seen.headers.includes("weir-assertion"), seen.headers.join());
  const user = await fetch(
    `${url}/hello`,
    from("203.0.113.1", { Authorization: `Bearer ${await tokenFor(secrets.jwt, "anne")}` }),
  );
  assert.equal(user.status, 200);
  assert.equal(((await user.json()) as { caller: { user: string } }).caller.user, "anne");
});

test("Hono middleware limits only its routes", async () => {
  const url = await startWorker(
    "hono",
    `import { Hono } from "hono";
    import { AddressCounter } from "weir-edge";
    import { weir, type WeirVariables } from "weir-edge/hono";
    export { AddressCounter };
    const app = new Hono<{ Variables: WeirVariables }>();
    app.use(weir({ routes: [{ methods: ["POST"], path: "/orders", limits: [{ by: "address", limit: 4, window: "1m" }] }] }));
    app.get("/", (c) => c.text("hello " + c.get("caller").address));
    app.post("/orders", async (c) => c.json(await c.req.json(), 201, { "X-Order": "1" }));
    export default app;`,
  );
  const order = () => fetch(`${url}/orders`, { ...from("203.0.113.3"), method: "POST", body: '{"a": 1}' });
  const answers = await Promise.all(Array.from({ length: 12 }, order));
  assert.equal(answers.filter(({ status }) => status === 201).length, 4);
  const accepted = answers.find(({ status }) => status === 201);
  assert.equal(accepted?.headers.get("x-order"), "1");
  assert.deepEqual(await accepted?.json(), { a: 1 });
  const denied = answers.find(({ status }) => status === 429);
  assert.equal(denied?.headers.get("content-type"), "application/problem+json");
  for (let n = 0; n < 20; n++) assert.equal(await (await fetch(url, from("203.0.113.3"))).text(), "hello 203.0.113.3");
});

test("limit() counts a key's units exactly, all or none", async () => {
  const url = await startWorker(
    "counter",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const weir = createWeir();
    export default {
      async fetch(request: Request): Promise<Response> {
        const asked = new URL(request.url).searchParams;
        const cost = Number(asked.get("cost") ?? 1);
        return Response.json(await weir.limit(asked.get("key") ?? "", { limit: 10, window: 3600, cost })
          .catch((error: Error) => error.message));
      },
    };`,
  );
  const count = async (key: string, cost = 1) =>
    (await (await fetch(`${url}/?key=${key}&cost=${cost}`)).json()) as { allowed: boolean; remaining: number };
  const results = await Promise.all(Array.from({ length: 30 }, () => count("one")));
  assert.equal(results.filter(({ allowed }) => allowed).length, 10);
  assert.deepEqual(
    [await count("two", 7), await count("two", 4), await count("two", 3)].map(({ allowed, remaining }) => [
      allowed,
      remaining,
    ]),
    [
      [true, 3],
      [false, 3],
      [true, 0],
    ],
  );
  assert.equal(await count("two", 0), "cost is 0; expected a whole number from 1 to 1000");
});

const honoLimits = async (name: string, imports: string): Promise<void> => {
  const url = await startWorker(
    name,
    `import { Hono } from "hono";
    ${imports}
    export { AddressCounter };
    const app = new Hono();
    const key = (c: { req: { header(name: string): string | undefined } }) => c.req.header("x-api-key");
    app.use("/api/*", limit({ key, limit: 3, window: 3600, name: "api" }));
    app.use("/costly", limit({ key, limit: 10, window: 3600, cost: (c) => Number(c.req.query("cost")), name: "costly" }));
    app.use("/shadow", limit({ key, limit: 1, window: 3600, shadow: true }));
    app.get("/api/own", (c) => c.text("own", 200, { RateLimit: '"own";r=5;t=9' }));
    app.all("*", (c) => c.text(c.req.header("x-forwarded-for") ?? "none", 200, { "Cache-Control": "public" }));
    export default app;`,
  );
  const get = (path: string, headers: Record<string, string> = { "X-Api-Key": "a" }) =>
    fetch(url + path, from("203.0.113.1", { "X-Forwarded-For": "198.51.100.1", ...headers }));
  const first = await get("/api/x");
  assert.equal(await first.text(), "198.51.100.1");
  assert.deepEqual(
    ["cache-control", "ratelimit-policy", "ratelimit"].map((name) => first.headers.get(name)),
    ["public", '"api";q=3;w=3600', '"api";r=2;t=3600'],
  );
  assert.equal((await get("/api/own")).headers.get("ratelimit"), '"own";r=5;t=9');
  assert.equal((await get("/api/x")).status, 200);
  for (let sent = 0; sent < 2; sent++) {
    const denied = await get("/api/x");
    assert.equal(denied.status, 429);
    assert.match(denied.headers.get("ratelimit") ?? "", /^"api";r=0;t=\d+$/);
    assert.ok(Number(denied.headers.get("retry-after")) > 3000);
    assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], ["api"]);
  }
  assert.equal((await get("/api/x", { "X-Api-Key": "b" })).status, 200);
  for (let sent = 0; sent < 5; sent++) assert.equal((await get("/api/x", {})).status, 200, "without a key");
  const costs = [7, 4, 3, 1].map((cost) => `/costly?cost=${cost}`);
  const statuses = [];
  for (const path of costs) statuses.push((await get(path)).status);
  assert.deepEqual(statuses, [200, 429, 200, 429]);
  assert.deepEqual([(await get("/shadow")).status, (await get("/shadow")).status], [200, 200]);
};

test("limit() of weir-edge/hono changes nothing but the RateLimit fields", () =>
  honoLimits(
    "hono-limits",
    `import { AddressCounter } from "weir-edge";
    import { limit } from "weir-edge/hono";`,
  ));

test("limit() of weir-edge/limit/hono does so too", () =>
  honoLimits(
    "hono-only-limits",
    `import { AddressCounter } from "weir-edge/limit";
    import { limit } from "weir-edge/limit/hono";`,
  ));

/** A Worker that limits its own handler. Its paths `/peek`, `/refund` and `/reset` call the functions of these names. */
const onlyLimits = (
  module: string,
): string => `import { AddressCounter, limited, peek, refund, reset } from "${module}";
  export { AddressCounter };
  const numbers = { limit: 10, window: 3600 };
  const key = (request: Request) => request.headers.get("x-api-key");
  const cost = (request: Request) => Number(request.headers.get("x-cost") ?? 1);
  const reported: unknown[] = [];
  const passes = limited({ key, ...numbers, cost, name: "api" }, async (request: Request, env: { GREETING: string }) => {
    // The headers of such a response cannot be changed.
    if (request.url.endsWith("/fetched")) return fetch("data:text/plain,fetched");
    const headers = { "X-Own": "1", "Cache-Control": "public", RateLimit: '"own";r=5;t=9' };
    return new Response(env.GREETING + (await request.text()), { status: 201, headers });
  });
  const shadow = limited(
    { key, limit: 1, window: 3600, name: "shadow", shadow: true,
      report: ({ allowed }, request: Request) => reported.push([allowed, request.method]) },
    (_request: Request) => Response.json(reported));
  export default {
    async fetch(request: Request, env: { GREETING: string }): Promise<Response> {
      const key = "api:" + request.headers.get("x-api-key");
      const { pathname } = new URL(request.url);
      if (pathname === "/peek") return Response.json(await peek(key, numbers));
      if (pathname === "/refund") return Response.json(await refund(key, { ...numbers, cost: cost(request) }));
      if (pathname === "/reset") return Response.json(await reset(key, numbers));
      return pathname === "/shadow" ? shadow(request) : passes(request, env);
    },
  };`;

for (const module of ["weir-edge/limit", "weir-edge"]) {
  test(`limited() of ${module} only limits a handler`, async () => {
    const worker = await startProject({ after }, edge, module.replace("/", "-"), onlyLimits(module), {
      bindings: { GREETING: "hello " },
    });
    const most = module === "weir-edge" ? 300 : 120;
    assert.ok(worker.gzipKib <= most, `the bundle has ${worker.gzipKib.toFixed(1)} KiB`);
    const send = (key: string, path = "/", headers: Record<string, string> = {}): Promise<Response> =>
      fetch(worker.url + path, { method: "POST", body: "you", headers: { "X-Api-Key": key, ...headers } });
    const ask = async (key: string, path: string, headers: Record<string, string> = {}): Promise<unknown[]> => {
      const { allowed, remaining } = (await (await send(key, path, headers)).json()) as Record<string, unknown>;
      return [allowed, remaining];
    };

    const first = await send("one");
    assert.deepEqual(
      [
        first.status,
        await first.text(),
        ...["x-own", "cache-control", "ratelimit"].map((name) => first.headers.get(name)),
      ],
      [201, "hello you", "1", "public", '"own";r=5;t=9'],
    );
    assert.equal(first.headers.get("ratelimit-policy"), '"api";q=10;w=3600');
    const fetched = await send("one", "/fetched");
    assert.deepEqual([await fetched.text(), fetched.headers.get("ratelimit")], ["fetched", '"api";r=8;t=3600']);

    const statuses = await Promise.all(Array.from({ length: 30 }, async () => (await send("two")).status));
    assert.equal(statuses.filter((status) => status === 201).length, 10);
    const denied = await send("two");
    assert.deepEqual(
      [denied.status, denied.headers.get("content-type"), denied.headers.get("x-own")],
      [429, "application/problem+json", null],
    );
    assert.ok(Number(denied.headers.get("retry-after")) > 3000);

    assert.deepEqual(await ask("two", "/peek"), [false, 0]);
    assert.deepEqual(await ask("two", "/refund", { "X-Cost": "3" }), [true, 3]);
    assert.deepEqual(await ask("two", "/peek"), [true, 3], "peeking counts nothing");
    assert.equal((await send("two", "/", { "X-Cost": "4" })).status, 429);
    assert.equal((await send("two", "/", { "X-Cost": "3" })).status, 201, "the denial of more units is not remembered");
    assert.deepEqual(await ask("two", "/reset"), [true, 10]);
    assert.equal((await send("two")).status, 201);
    assert.deepEqual(await ask("two", "/refund", { "X-Cost": "5" }), [true, 10], "no more than was counted");
    assert.deepEqual(await ask("new", "/peek"), [true, 10]);

    assert.deepEqual(await (await send("one", "/shadow")).json(), [[true, "POST"]]);
    assert.equal((await send("one", "/shadow")).status, 200);
    assert.deepEqual(await (await send("one", "/shadow")).json(), [
      [true, "POST"],
      [false, "POST"],
      [false, "POST"],
    ]);
    const without = await fetch(worker.url, { method: "POST", body: "you" });
    assert.deepEqual([without.status, without.headers.get("ratelimit-policy")], [201, null]);
  });
}

test("limited() passes the error of an object that does not answer to its caller", async () => {
  const worker = await startProject(
    { after },
    edge,
    "broken-limit",
    `import { AddressCounter as Own, limited } from "weir-edge/limit";
    export class AddressCounter extends Own {
      take(): never { throw new Error("broken"); }
    }
    const hello = limited({ key: () => "all", limit: 1, window: 60 }, () => new Response("hello"));
    export default {
      fetch: async (): Promise<Response> => hello().catch(({ message }) => new Response(message, { status: 503 })),
    };`,
  );
  const answer = await fetch(worker.url);
  assert.deepEqual([answer.status, await answer.text()], [503, "broken"]);
});

test("a user's request costs few calls of the runtime", async () => {
  const origin = await startOrigin({ after });
  const url = await startWorker(
    "calls",
    `import { AddressCounter, createWeir } from "weir-edge";
    export { AddressCounter };
    const calls: string[] = [];
    const record = (of: any, name: string): void => {
      const own = of[name];
      of[name] = function (first: unknown, ...rest: unknown[]) {
        calls.push(typeof first === "string" ? name + " " + first : name);
        return own.call(this, first, ...rest);
      };
    };
    for (const name of ["get", "forEach"]) record(Headers.prototype, name);
    record(globalThis, "setTimeout");
    const weir = createWeir();
    export default {
      fetch: (request: Request, env: object, ctx: unknown): Response | Promise<Response> =>
        request.url.endsWith("/calls") ? Response.json(calls.splice(0)) : weir.handle(request, env, ctx),
    };`,
    { WEIR_JWT_SECRET: secrets.jwt, WEIR_EDGE_SECRET: origin.secrets.edge, WEIR_ORIGIN_URL: origin.url },
  );
  const authorization = `Bearer ${await tokenFor(secrets.jwt, "anne")}`;
  const send = async (): Promise<void> => {
    const init = { ...from("203.0.113.7", { authorization }), method: "POST", body: "{}" };
    assert.equal((await fetch(`${url}/api/jobs/analysis`, init)).status, 200);
  };
  // The first one also schedules a report.
  await send();
  await fetch(`${url}/calls`);
  await send();
  const calls = (await (await fetch(`${url}/calls`)).json()) as string[];
  // The headers that are read one by one are those of the response.
  const ofResponse = ["get connection", "get cache-control"];
  assert.deepEqual(calls.filter((call) => !ofResponse.includes(call)).sort(), ["forEach", "setTimeout"]);
});
