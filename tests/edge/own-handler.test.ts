import assert from "node:assert/strict";
import { after, test } from "node:test";
import { buildPackage, from, startProject } from "./package.ts";

// Workers with the package weir-edge and their own handler, in workerd.

const edge = await buildPackage();

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
