import assert from "node:assert/strict";
import { after, test } from "node:test";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
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

test("limit() of Hono changes nothing but the RateLimit fields", async () => {
  const url = await startWorker(
    "only-limits",
    `import { Hono } from "hono";
    import { AddressCounter } from "weir-edge";
    import { limit } from "weir-edge/hono";
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
});
