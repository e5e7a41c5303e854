import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createServer, request as httpRequest } from "node:http";
import { type AddressInfo, createConnection } from "node:net";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { tokenFor } from "../harness/identity.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { receive, startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const loose = { ANON_LIMIT: "100000", ANON_READ_LIMIT: "100000" };
// The native limiter is left out, because its limits are in wrangler.toml. So only the Worker's own count decides on
// reads.
const edge = await startEdge(
  { after },
  { originUrl: origin.url, secrets: origin.secrets, vars: loose, worker: { ratelimits: {} } },
);
const ask = edge.from("203.0.113.20");

test("every method is forwarded, with its body", async () => {
  for (const method of ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]) {
    const body = ["POST", "PUT", "PATCH", "DELETE"].includes(method) ? `body of ${method}` : undefined;
    const answer = await ask("/api/anything", { method, body: body ?? null });
    assert.equal(answer.status, 200, method);
    assert.equal(origin.last().method, method);
    assert.equal(origin.last().body, body ?? "");
  }
});

// Without backquotes, quotation marks and angle brackets, because the runtime refuses requests with them.
test("any path and query arrive as they were signed", async () => {
  const targets = [
    "/api/jobs?limit=1&before=2",
    "/api/jobs/%E2%82%AC",
    "/api/a%2Fb/c%20d",
    "/api/a?b=c%26d&e=%",
    "/api/a;b=c,d",
    "/api/a'b(c)*!~$",
    "/api/[a]|{b}^c",
    "/api/a\\b",
    "/api/x?q=[a]|{b}^`'",
    "/api/a//b",
    "/api/a/./b/../c",
    "/api/a/%2e%2e/b",
    "/api/jobs?",
    "/api/a?b?c=d?",
    "/api/ü",
    "/api/a+b?c+d=e+f",
    "/api/a%zz",
    "/api/?",
    "/api/a%00b",
    "/api/a:b@c",
    "/api/a?x=%c3%28",
    "/api/a?u=http://evil.example/../..",
  ];
  for (const target of targets) {
    const status = await raw("GET", target);
    assert.equal(status, 200, target);
    assert.ok(origin.last().target.startsWith("/api/"), target);
  }
});

/** Sends a request with exactly this target, which `fetch` would normalise. */
function raw(method: string, target: string): Promise<number> {
  const { port } = new URL(edge.url);
  return new Promise((done, failed) => {
    const socket = createConnection(Number(port), "127.0.0.1");
    let text = "";
    socket.on("data", (data) => (text += String(data)));
    socket.on("end", () => done(Number(text.split(" ")[1])));
    socket.on("error", failed);
    socket.write(
      `${method} ${target} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\n` +
        "CF-Connecting-IP: 203.0.113.20\r\nConnection: close\r\n\r\n",
    );
  });
}

test("routes of the origin outside the API cannot be reached", async () => {
  const before = origin.received.length;
  for (const target of [
    "/metrics",
    "/healthz",
    "/readyz",
    "/api",
    "//api/jobs",
    "/api/../metrics",
    "/api/%2e%2e/metrics",
    "/api/..\\metrics",
    "/API/jobs",
    "/./metrics",
  ]) {
    assert.equal(await raw("GET", target), 404, target);
  }
  assert.equal(await raw("POST", "/metrics"), 404);
  assert.equal(origin.received.length, before);
});

test("the page is served without a call of the counting object", async () => {
  const page = await ask("/");
  assert.equal(page.status, 200);
  assert.match(await page.text(), /<!doctype html>/i);
});

test("a request has an id and a trace context", async () => {
  const answer = await ask("/api/jobs/1");
  assert.match(
    answer.headers.get("x-request-id") ?? "",
    /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/,
  );
  assert.equal(origin.last().headers["x-request-id"], answer.headers.get("x-request-id"));
  assert.equal(origin.last().claims.jti, answer.headers.get("x-request-id"));
  assert.match(String(origin.last().headers.traceparent), /^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/);
  const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  await ask("/api/jobs/1", { headers: { traceparent, tracestate: "a=b" } });
  assert.match(
    String(origin.last().headers.traceparent),
    /^00-4bf92f3577b34da6a3ce929d0e0e4736-(?!00f067aa0ba902b7)[0-9a-f]{16}-01$/,
  );
  assert.equal(origin.last().headers.tracestate, "a=b");
  assert.match(answer.headers.get("server-timing") ?? "", /^edge;dur=\d+, origin;dur=\d+$/);
});

/** Sends these header lines, which `fetch` would refuse or change, and returns the header lines of the response. */
function rawHeaders(url: string, path: string, lines: string[]): Promise<string[]> {
  const { port } = new URL(url);
  return new Promise((done, failed) => {
    const socket = createConnection(Number(port), "127.0.0.1");
    let text = "";
    socket.on("data", (data) => (text += String(data)));
    socket.on("end", () => done((text.split("\r\n\r\n")[0] ?? "").split("\r\n")));
    socket.on("error", failed);
    socket.write([`GET ${path} HTTP/1.1`, `Host: 127.0.0.1:${port}`, ...lines, "", ""].join("\r\n"));
  });
}

test("end-to-end request headers pass to the origin", async () => {
  const passing = {
    accept: "text/plain",
    baggage: "a=b",
    "content-type": "application/json",
    "idempotency-key": "k",
    "if-none-match": '"x"',
    "last-event-id": "7",
    prefer: "wait=1",
    "sentry-trace": "1-2-1",
    "stripe-signature": "t=1,v1=2",
    "user-agent": "test",
    "weir-job-token": "t",
    "weir-priority": "2",
    "weir-run-at": "2027-01-31T08:00:00Z",
    "x-api-key": "key",
    "x-csrf-token": "c",
    "x-two": "1, 2",
  };
  await ask("/api/jobs/analysis", { method: "POST", body: "{}", headers: passing });
  for (const [name, value] of Object.entries(passing)) assert.equal(origin.last().headers[name], value, name);
});

test("hop-by-hop headers and those that Connection lists end at the edge", async () => {
  const lines = [
    "Connection: close, X-Hop",
    "X-Hop: 1",
    "X-End: 2",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: close",
  ];
  await rawHeaders(edge.url, "/api/jobs/1", [...lines, "Proxy-Authorization: Basic Og==", "TE: trailers"]);
  const { headers } = origin.last();
  assert.equal(headers["x-end"], "2");
  for (const name of ["x-hop", "keep-alive", "proxy-connection", "proxy-authorization", "te"])
    assert.equal(headers[name], undefined, name);

  const hops = await startOrigin({ after }, (_, response) => {
    response.writeHead(200, {
      connection: "X-Hop",
      "x-hop": "1",
      "x-end": "2",
      "proxy-authenticate": "Basic",
      "alt-svc": 'h3=":443"',
      "keep-alive": "timeout=5",
    });
    response.end("{}");
  });
  const other = await startEdge({ after }, { originUrl: hops.url, secrets: hops.secrets });
  const answer = (await rawHeaders(other.url, "/api/jobs/1", ["Connection: close"])).map((line) => line.toLowerCase());
  assert.ok(answer.includes("x-end: 2"));
  for (const name of ["x-hop", "proxy-authenticate", "alt-svc", "keep-alive", "te"])
    assert.ok(!answer.some((line) => line.startsWith(`${name}:`)), name);
});

test("headers that name an identity or an address end at the edge", async () => {
  const claimed = ["X-User-Id", "X_User_Id", "X.User.Id", "X-Remote-User", "X-Forwarded-User", "Weir-On-Behalf-Of"];
  const addresses = ["Forwarded", "X-Forwarded-Port", "X_Real_IP", "True-Client-IP", "CF-IPCountry", "X-Original-URL"];
  const all = [...claimed, ...addresses, "Authorization", "Cookie"];
  await ask("/api/jobs/1", {
    headers: Object.fromEntries(all.map((name) => [name, name === "Authorization" ? "" : "root"])),
  });
  const { headers } = origin.last();
  for (const name of all) assert.equal(headers[name.toLowerCase()], undefined, name);
  assert.equal(headers["x-real-ip"], "203.0.113.20");

  const other = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { IDENTITY_HEADERS: ["X-Org", "X-Tenant-*"] } },
  );
  await other.from("203.0.113.20")("/api/jobs/1", {
    headers: { "x-org": "a", "x-tenant-id": "b", "x-user-id": "c" },
  });
  assert.equal(origin.last().headers["x-org"], undefined);
  assert.equal(origin.last().headers["x-tenant-id"], undefined);
  assert.equal(origin.last().headers["x-user-id"], undefined, "the list adds names");
});

test("end-to-end response headers pass to the client, Set-Cookie as several", async () => {
  const chatty = await startOrigin({ after }, (_, response) => {
    response.writeHead(201, {
      location: "/api/jobs/17",
      etag: '"e"',
      "content-type": "application/json",
      "content-security-policy": "default-src 'none'",
      "retry-after": "5",
      "cache-control": "public, max-age=60, s-maxage=60",
      "set-cookie": ["a=b; Expires=Thu, 01 Jan 2032 00:00:00 GMT", "c=d; HttpOnly"],
      "x-total-count": "7",
      vary: "Accept",
      "server-timing": "db;dur=1",
      ratelimit: '"fake";r=1;t=1',
      "access-control-allow-origin": "*",
    });
    response.end("{}");
  });
  const other = await startEdge({ after }, { originUrl: chatty.url, secrets: chatty.secrets });
  const answer = await other.from("203.0.113.21")("/api/jobs/analysis", { method: "POST", body: "{}" });
  assert.equal(answer.status, 201);
  assert.equal(answer.headers.get("location"), "/api/jobs/17");
  assert.equal(answer.headers.get("etag"), '"e"');
  assert.equal(answer.headers.get("retry-after"), "5");
  assert.equal(answer.headers.get("content-security-policy"), "default-src 'none'");
  assert.equal(answer.headers.get("x-total-count"), "7");
  assert.deepEqual(answer.headers.getSetCookie(), ["a=b; Expires=Thu, 01 Jan 2032 00:00:00 GMT", "c=d; HttpOnly"]);
  assert.equal(answer.headers.get("cache-control"), "private, max-age=60", "no shared cache may store it");
  assert.equal(answer.headers.get("vary"), "Accept, Origin");
  assert.match(answer.headers.get("server-timing") ?? "", /db;dur=1, edge;dur=\d+, origin;dur=\d+/);
  assert.equal(answer.headers.get("ratelimit"), '"anon";r=9;t=60');
  assert.equal(answer.headers.get("access-control-allow-origin"), null);
});

test("compressed responses reach only clients that accept them", async () => {
  const text = "a".repeat(5000);
  const zipped = await startOrigin({ after }, (request, response) => {
    const zips = /gzip/.test(String(request.headers["accept-encoding"]));
    response.writeHead(200, zips ? { "content-encoding": "gzip" } : {}).end(zips ? gzipSync(text) : text);
  });
  const other = await startEdge({ after }, { originUrl: zipped.url, secrets: zipped.secrets });
  for (const [encoding, answered] of [
    ["gzip", "gzip"],
    ["identity", null],
  ] as const) {
    const answer = await other.from("203.0.113.21")("/api/x", { headers: { "accept-encoding": encoding } });
    assert.equal(answer.headers.get("content-encoding"), answered, encoding);
    assert.equal(await answer.text(), text, encoding);
  }
});

test("caches before the origin do not mix up two callers' responses", async () => {
  for (const method of ["GET", "HEAD"]) {
    await ask("/api/usage", { method });
    assert.equal(origin.last().method, method);
    // The runtime adds this to a request that bypasses its caches.
    assert.equal(origin.last().headers["cache-control"], "no-cache", method);
  }
});

test("a response without Cache-Control must not be stored", async () => {
  assert.equal((await ask("/api/usage")).headers.get("cache-control"), "no-store");
});

test("redirects are passed to the client", async () => {
  const redirecting = await startOrigin({ after }, (_, response) =>
    response.writeHead(302, { location: "http://127.0.0.1:1/secret" }).end(),
  );
  const other = await startEdge({ after }, { originUrl: redirecting.url, secrets: redirecting.secrets });
  const answer = await other.from("203.0.113.22")("/api/usage");
  assert.equal(answer.status, 302);
  assert.equal(answer.headers.get("location"), "http://127.0.0.1:1/secret");
});

test("an unreachable origin is a 502, and one that does not respond a 504", async () => {
  const gone = await startEdge({ after }, { originUrl: `http://127.0.0.1:${await freePort()}` });
  const refused = await gone.from("203.0.113.23")("/api/usage");
  assert.equal(refused.status, 502);
  assert.equal(refused.headers.get("retry-after"), "2");
  assert.equal(refused.headers.get("content-type"), "application/problem+json");
  assert.equal(((await refused.json()) as { title: string }).title, "Bad Gateway");
  await gone.logged("origin_unreachable");

  const silent = createServer(() => undefined);
  await new Promise<void>((done) => silent.listen(0, "127.0.0.1", done));
  after(() => silent.closeAllConnections());
  after(() => void silent.close());
  const { port } = silent.address() as AddressInfo;
  const slow = await startEdge(
    { after },
    { originUrl: `http://127.0.0.1:${port}`, vars: { ORIGIN_TIMEOUT_MS: "300" } },
  );
  const started = Date.now();
  const late = await slow.from("203.0.113.24")("/api/usage");
  assert.equal(late.status, 504);
  assert.equal(late.headers.get("retry-after"), "2");
  assert.ok(Date.now() - started < 20_000, "long before the default timeout");
  assert.equal(((await late.json()) as { title: string }).title, "Gateway Timeout");
});

test("server-sent events stream for longer than ORIGIN_TIMEOUT_MS", {
  timeout: 120_000,
}, async () => {
  let read = (): void => {};
  const events = await startOrigin({ after }, async (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (let sent = 0; sent < 6; sent++) {
      const arrived = new Promise<void>((done) => (read = done));
      response.write(`event: job\ndata: ${sent}\n\n`);
      // Each chunk is written only after the previous one was read, so buffering would block.
      await arrived;
      await wait(150);
    }
    response.end();
  });
  const other = await startEdge(
    { after },
    { originUrl: events.url, secrets: events.secrets, vars: { ORIGIN_TIMEOUT_MS: "500" } },
  );
  const answer = await other.from("203.0.113.25")("/api/jobs/1/events");
  assert.equal(answer.headers.get("content-type"), "text/event-stream");
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of answer.body ?? []) {
    text += decoder.decode(chunk as Uint8Array);
    if (text.endsWith("\n\n")) read();
  }
  assert.equal(text.match(/event: job/g)?.length, 6);
});

test("when the client disconnects, the request to the origin is cancelled", async () => {
  let cancelled = 0;
  const endless = await startOrigin({ after }, (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const beat = setInterval(() => response.write("data: x\n\n"), 50);
    response.on("close", () => {
      clearInterval(beat);
      cancelled++;
    });
  });
  const other = await startEdge({ after }, { originUrl: endless.url, secrets: endless.secrets });
  const hangUp = new AbortController();
  const answer = await other.from("203.0.113.27")("/api/lanes/events", { signal: hangUp.signal });
  await answer.body?.getReader().read();
  hangUp.abort();
  await until("the request to be cancelled", () => cancelled > 0);
  assert.equal(cancelled, 1);
});

test("the response of an origin that refuses a body early is passed on", async () => {
  const strict = await startOrigin({ after }, (request, response) => {
    response.writeHead(413, { "content-type": "application/problem+json" });
    response.end('{"title":"Content Too Large"}');
    request.resume();
  });
  const vars = { MAX_BODY_BYTES: 2_000_000 };
  const other = await startEdge({ after }, { originUrl: strict.url, secrets: strict.secrets, vars });
  const answer = await other.from("203.0.113.28")("/api/jobs/analysis", {
    method: "POST",
    body: Buffer.alloc(1024 * 1024, 32),
  });
  assert.equal(answer.status, 413);
  assert.equal(((await answer.json()) as { title: string }).title, "Content Too Large");
});

/** The resident memory of the runtimes that this test has started, in megabytes. */
function residentMegabytes(): number {
  let sum = 0;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const status = readFileSync(`/proc/${pid}/status`, "utf8");
      if (!/^Name:\s+workerd/m.test(status) || !new RegExp(`^PPid:\\s+${process.pid}$`, "m").test(status)) continue;
      sum += Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) / 1024;
    } catch {
      // The process has ended by now.
    }
  }
  return sum;
}

test("50 MB are streamed in both directions without being buffered", {
  timeout: 300_000,
  skip: process.platform === "linux" ? false : "memory is measured in /proc",
}, async () => {
  const size = 50 * 1024 * 1024;
  let firstByteAt = 0;
  let taken = 0;
  const upload = await startOrigin({ after }, async (request, response) => {
    for await (const chunk of request) {
      firstByteAt ||= Date.now();
      taken += (chunk as Buffer).length;
    }
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": size });
    const block = Buffer.alloc(1024 * 1024, 7);
    for (let sent = 0; sent < 50; sent++)
      if (!response.write(block)) await new Promise((done) => response.once("drain", done));
    response.end();
  });
  const vars = { MAX_BODY_BYTES: size };
  const other = await startEdge({ after }, { originUrl: upload.url, secrets: upload.secrets, vars });
  const { port } = new URL(other.url);
  await other.from("203.0.113.26")("/");
  const before = residentMegabytes();
  let peak = before;
  const watch = setInterval(() => (peak = Math.max(peak, residentMegabytes())), 20);
  let lastByteSentAt = 0;
  const received = await new Promise<number>((done, failed) => {
    const outgoing = httpRequest(
      {
        host: "127.0.0.1",
        port,
        path: "/api/jobs/analysis",
        method: "POST",
        headers: { "content-length": size, "cf-connecting-ip": "203.0.113.26" },
      },
      async (response) => {
        assert.equal(response.statusCode, 200);
        let count = 0;
        for await (const chunk of response) count += (chunk as Buffer).length;
        done(count);
      },
    );
    outgoing.on("error", failed);
    void (async () => {
      const block = Buffer.alloc(1024 * 1024, 7);
      for (let sent = 0; sent < 50; sent++) {
        if (!outgoing.write(block)) await new Promise((resume) => outgoing.once("drain", resume));
        if (sent === 25) await wait(300);
      }
      lastByteSentAt = Date.now();
      outgoing.end();
    })();
  });
  clearInterval(watch);
  assert.ok(before > 0, "the memory of the runtime is known");
  assert.ok(peak - before < 25, `from ${before.toFixed(0)} to ${peak.toFixed(0)} MB`);
  assert.equal(taken, size);
  assert.equal(received, size);
  assert.ok(firstByteAt < lastByteSentAt - 200, "the origin reads before the client has sent all");
});

test("a long URL is forwarded up to 16 KB", async () => {
  const bearer = { authorization: `Bearer ${await tokenFor(origin.secrets.jwt)}` };
  const query = (length: number): string => `/api/usage?${"a".repeat(length - "/api/usage?".length)}`;
  for (const length of [5_900, 16 * 1024]) {
    assert.equal((await ask(query(length), { headers: bearer })).status, 200, String(length));
    assert.equal(origin.last().target, query(length));
  }
  const answer = await ask(query(16 * 1024 + 1), { headers: bearer });
  assert.equal(answer.status, 414);
  assert.equal(((await answer.json()) as { title: string }).title, "URI Too Long");
});

test("a status that HTTP does not have is a 502", async () => {
  const odd = await startOrigin({ after }, (request, response) => {
    const status = Number(new URL(request.url ?? "", "http://x").searchParams.get("status"));
    request.socket.end(`HTTP/1.1 ${status} Odd\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`);
    response.destroy();
  });
  const other = await startEdge({ after }, { originUrl: odd.url, secrets: odd.secrets });
  for (const status of [600, 999]) {
    const answer = await other.from("203.0.113.29")(`/api/usage?status=${status}`);
    assert.equal(answer.status, 502, String(status));
    assert.equal(((await answer.json()) as { title: string }).title, "Bad Gateway");
  }
  assert.match((await other.logged("origin_unreachable", 2))[0] ?? "", /status 600/);
  assert.equal((await other.from("203.0.113.29")("/api/usage?status=599")).status, 599);
});

test("an edge that is its own origin does not loop", async () => {
  const port = await freePort();
  const loop = await startEdge({ after }, { originUrl: `http://127.0.0.1:${port}`, port });
  const answer = await loop.from("203.0.113.29")("/api/usage");
  assert.equal(answer.status, 500);
  assert.equal(((await answer.json()) as { title: string }).title, "Misconfigured");
  assert.match((await loop.logged("internal_error"))[0] ?? "", /ORIGIN_URL is the address of the edge itself/);
});

test("an assertion is valid for its own request only", async () => {
  await ask("/api/jobs/analysis", { method: "POST", body: "{}" });
  const stolen = String(origin.last().headers["weir-assertion"]);
  const key = Buffer.from(origin.secrets.edge);
  const message = (method: string, url: string): never =>
    ({
      method,
      url,
      headers: { "weir-assertion": stolen },
      rawHeaders: [],
      async *[Symbol.asyncIterator]() {},
    }) as never;
  await receive(message("POST", "/api/jobs/analysis"), key);
  await assert.rejects(receive(message("POST", "/api/jobs/specview"), key));
  await assert.rejects(receive(message("DELETE", "/api/jobs/analysis"), key));
});
