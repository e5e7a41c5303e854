import assert from "node:assert/strict";
import { after, test } from "node:test";
import { receive, startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

// Several origins, chosen by route: URLs and service bindings.

const origin = await startOrigin({ after });
const shop = await startOrigin({ after }, async (request, response) => {
  shop.received.push(await receive(request, Buffer.from(origin.secrets.edge)));
  response.writeHead(302, { location: "/shop/1", "set-cookie": ["a=1", "b=2"] }).end();
});

/** A Worker that returns what it receives. */
const site = {
  name: "site",
  compatibilityDate: "2026-09-01",
  modules: true,
  script: `export default {
    async fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/site/broken") throw new Error("broken");
      if (pathname === "/site/cf") return Response.json(request.cf ?? null);
      const headers = Object.fromEntries(request.headers);
      return Response.json({ method: request.method, url: request.url, headers, body: await request.text() });
    },
  }`,
};

test("a route chooses its origin: a URL or a service binding", async () => {
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      without: ["LIMITED_ROUTES"],
      vars: {
        ORIGINS: {
          shop: shop.url,
          site: { service: "SITE" },
          internal: { service: "SITE", url: "http://api.internal:8080" },
        },
        ROUTES: [
          { path: "/internal/*", origin: "internal" },
          { path: "/shop/*", origin: "shop" },
          { path: "/site/*", origin: "site", pass: ["cookie"] },
          { path: "/api/*" },
        ],
      },
      worker: { serviceBindings: { SITE: "site" } },
      beside: [site],
    },
  );
  const located = await edge.miniflare.dispatchFetch("http://shop.example/site/cf", { cf: { country: "DE" } });
  assert.equal(((await located.json()) as { country?: string } | null)?.country, "DE");
  const ask = edge.from("203.0.113.1");
  assert.equal((await ask("/api/jobs/1")).status, 200);
  assert.equal(origin.last().target, "/api/jobs/1");
  const moved = await ask("/shop/0?x=1", { method: "PUT", body: "all of it" });
  assert.equal(moved.status, 302);
  assert.deepEqual(moved.headers.getSetCookie(), ["a=1", "b=2"]);
  assert.equal(shop.last().target, "/shop/0?x=1");
  assert.equal(shop.last().body, "all of it");
  assert.equal(shop.last().claims.client_address, "203.0.113.1");

  const answer = await ask("/site/a?b=c", {
    method: "POST",
    body: "x".repeat(100_000),
    headers: { cookie: "a=b", "x-user-id": "root" },
  });
  assert.equal(answer.status, 200);
  const seen = (await answer.json()) as { method: string; url: string; headers: Record<string, string>; body: string };
  assert.equal(seen.url, `${edge.url}/site/a?b=c`, "a service gets the client's URL");
  assert.equal(seen.headers.host, new URL(edge.url).host, "frameworks build URLs of redirects from it");
  assert.equal(seen.method, "POST");
  assert.equal(seen.body.length, 100_000);
  assert.equal(seen.headers.cookie, "a=b");
  assert.equal(seen.headers["x-user-id"], undefined);
  assert.equal(seen.headers["x-real-ip"], "203.0.113.1");
  assert.match(seen.headers["weir-assertion"] ?? "", /^eyJ/);
  assert.equal((await ask("/site/broken")).status, 502);
  const internal = (await (await ask("/internal/a?b=c")).json()) as { url: string; headers: { host?: string } };
  assert.equal(internal.url, "http://api.internal:8080/internal/a?b=c", "a service gets the URL that is set for it");
  assert.equal(internal.headers.host, "api.internal:8080");
  assert.equal(origin.received.length, 1);
});

test("without a route to ORIGIN_URL, it may be unset", async () => {
  const edge = await startEdge(
    { after },
    {
      originUrl: "",
      without: ["LIMITED_ROUTES"],
      vars: {
        ORIGINS: JSON.stringify({ site: { service: "SITE" } }),
        ROUTES: [{ path: "/site/*", origin: "site" }],
        REPORT_INTERVAL_MS: 100,
      },
      worker: { serviceBindings: { SITE: "site" } },
      beside: [site],
    },
  );
  assert.equal((await edge.from("203.0.113.1")("/site/a")).status, 200);
});

test("unknown origins, unknown bindings and bad URLs are errors with a path", async () => {
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      without: ["LIMITED_ROUTES"],
      vars: {
        ORIGINS: { shop: "http://shop.example.com", site: { service: "SITE" }, store: { service: "ADDRESS_COUNTERS" } },
        ROUTES: [{ path: "/shop/*", origin: "shops" }],
      },
    },
  );
  assert.equal((await edge.from("203.0.113.1")("/shop/1")).status, 500);
  const [line] = await edge.logged("internal_error");
  for (const error of [
    "ROUTES[0].origin: expected a name in ORIGINS: `shop` or `site` or `store`",
    "ORIGINS.shop: expected https://",
    "ORIGINS.site.service: `SITE` is not a service binding",
    "ORIGINS.store.service: `ADDRESS_COUNTERS` is not a service binding",
  ])
    assert.ok(line?.includes(error), `${error} in ${line}`);
});
