import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { Agent, request as httpRequest } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { skipWithoutGo } from "../harness/go.ts";
import { startGo } from "./go.ts";
import { type Edge, startEdge } from "./workerd.ts";

// A Go application answers the same through the edge as directly. `expected` lists what may differ.

interface Sent {
  method: string;
  target: string;
  headers?: Record<string, string>;
  body?: string | Buffer;
}

interface Answer {
  status: number;
  headers: Record<string, string[]>;
  body: Buffer;
}

const agent = new Agent({ keepAlive: true });
after(() => agent.destroy());

function send(url: string, { method, target, headers, body }: Sent): Promise<Answer> {
  const { hostname, port } = new URL(url);
  return new Promise((done, failed) => {
    const length = body === undefined ? {} : { "content-length": String(Buffer.byteLength(body)) };
    const all = { "cf-connecting-ip": "203.0.113.70", "user-agent": "test/1", ...length, ...headers };
    const sent = httpRequest({ hostname, port, agent, method, path: target, headers: all }, (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("error", failed);
      response.on("end", () => {
        const names: Record<string, string[]> = {};
        for (let at = 0; at < response.rawHeaders.length; at += 2) {
          const name = (response.rawHeaders[at] ?? "").toLowerCase();
          names[name] = [...(names[name] ?? []), response.rawHeaders[at + 1] ?? ""];
        }
        done({ status: response.statusCode ?? 0, headers: names, body: Buffer.concat(chunks) });
      });
    });
    sent.on("error", failed);
    sent.end(body);
  });
}

const skip = skipWithoutGo();
const application = { folder: join(root, "tests", "edge", "backend"), file: "main.go" };
const backend = skip ? undefined : await startGo({ after }, application);
const edge: Edge | undefined =
  backend === undefined
    ? undefined
    : await startEdge(
        { after },
        {
          originUrl: backend,
          without: ["LIMITED_ROUTES"],
          vars: {
            MAX_BODY_BYTES: 25_000_000,
            ROUTES: [{ path: "/*", skip: true, pass: ["authorization", "cookie"] }],
          },
        },
      );
const needsGo = { skip, timeout: 120_000 };

/** Headers for one connection, and the time. */
const perAnswer = ["connection", "keep-alive", "transfer-encoding", "date"];

/** The headers that the edge may answer with instead of these. */
function expected(direct: Answer): Record<string, string[]> {
  const headers = without(direct.headers, perAnswer);
  // The edge joins several lines of a header, except Set-Cookie (RFC 9110, 5.3).
  for (const [name, lines] of Object.entries(headers)) if (name !== "set-cookie") headers[name] = [lines.join(", ")];
  // Only the edge decides which pages may read responses.
  for (const name of Object.keys(headers)) if (name.startsWith("access-control-")) delete headers[name];
  // Answers depend on the caller, so no shared cache may store them.
  const [cached] = headers["cache-control"] ?? ["no-store"];
  headers["cache-control"] = [cached === "public, max-age=60" ? "private, max-age=60" : String(cached)];
  headers.vary = [[...(headers.vary ?? []), "Origin"].join(", ")];
  headers["x-content-type-options"] = ["nosniff"];
  return headers;
}

/** The headers that the edge adds to each answer. */
const added = ["x-request-id", "server-timing"];

/** The headers that it adds for pages of other origins. */
const forPages = ["access-control-allow-origin", "access-control-expose-headers"];

function without<T>(headers: Record<string, T>, names: string[]): Record<string, T> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !names.includes(name.toLowerCase())));
}

/** Request headers that the edge sets, and those that it does not forward. */
const ofTheEdge = [
  "weir-assertion",
  "traceparent",
  "x-request-id",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-forwarded-proto",
  "x-real-ip",
  "cf-connecting-ip",
  "connection",
  // The runtime's own: it forbids caches to answer, and accepts the encodings that it knows.
  "accept-encoding",
  "cache-control",
  "cf-worker",
  "pragma",
];

/** The body of /echo without what the edge changes. */
function comparable({ target }: Sent, { body }: Answer): string {
  if (!target.startsWith("/echo/") || body.length === 0) return body.toString("latin1");
  const echo = JSON.parse(body.toString()) as { length: number; headers: Record<string, string[]> };
  // The runtime sends the length of an empty body, except with GET and HEAD.
  if (echo.length === 0) delete echo.headers["Content-Length"];
  return JSON.stringify({ ...echo, headers: without(echo.headers, ofTheEdge) });
}

async function compare(sent: Sent): Promise<Answer> {
  assert.ok(backend && edge);
  const [direct, through] = [await send(backend, sent), await send(edge.url, sent)];
  const name = `${sent.method} ${sent.target} ${JSON.stringify(sent.headers ?? {})}`;
  assert.equal(through.status, direct.status, name);
  for (const header of added) assert.equal(through.headers[header]?.length, 1, `${header} of ${name}`);
  // The body of /echo has the headers that the edge adds, so its length differs.
  const ignored = sent.target.startsWith("/echo/") ? ["content-length"] : [];
  assert.deepEqual(
    without(through.headers, [...perAnswer, ...added, ...forPages, ...ignored]),
    without(expected(direct), ignored),
    name,
  );
  const bodies = [comparable(sent, through), comparable(sent, direct)];
  if (bodies[0] !== bodies[1]) assert.equal(bodies[0]?.slice(0, 2000), bodies[1]?.slice(0, 2000), name);
  return direct;
}

const form = { "content-type": "application/x-www-form-urlencoded" };

function requests(cookie: string, csrf: string): Sent[] {
  const json = { "content-type": "application/json" };
  const session = { cookie };
  const multipart = { "content-type": "multipart/form-data; boundary=x" };
  const parts =
    '--x\r\nContent-Disposition: form-data; name="note"\r\n\r\nhé\r\n--x\r\n' +
    `Content-Disposition: form-data; name="file"; filename="a b.txt"\r\n\r\n${"z".repeat(30_000)}\r\n--x--\r\n`;
  const get = (target: string, headers: Record<string, string> = {}): Sent => ({ method: "GET", target, headers });
  const statuses = [200, 201, 202, 203, 204, 206, 300, 304, 400, 401, 402, 403, 404, 405, 406, 409, 410, 412, 415];
  const later = [418, 422, 425, 428, 429, 431, 451, 500, 501, 502, 503, 504, 507, 511, 599];
  return [
    // Sessions and CSRF.
    { method: "POST", target: "/login", headers: form, body: "user=ann&password=wrong" },
    { method: "POST", target: "/login", headers: form, body: "user=ann&password=secret" },
    get("/app"),
    get("/app", session),
    get("/app", { cookie: "session=ann.forged" }),
    get("/app", { cookie: `theme=dark; ${cookie}; x="a b"` }),
    { method: "HEAD", target: "/app", headers: session },
    { method: "POST", target: "/app/notes", headers: { ...session, ...json }, body: '{"Text":"a"}' },
    {
      method: "POST",
      target: "/app/notes",
      headers: { ...session, ...json, "x-csrf-token": csrf },
      body: '{"Text":"é"}',
    },
    { method: "POST", target: "/app/notes", headers: { ...session, ...json, "x-csrf-token": csrf }, body: "{" },
    // Redirects.
    ...[301, 302, 303, 307, 308].flatMap((status) =>
      ["/app", "https://other.example/x?y=z", "..", "?page=2", "//other.example/"].flatMap((to) =>
        ["GET", "HEAD", "POST"].map((method) => ({
          method,
          target: `/redirect/${status}?to=${encodeURIComponent(to)}`,
          body: method === "POST" ? "a" : undefined,
        })),
      ),
    ),
    // Statuses.
    ...[...statuses, ...later].flatMap((status) =>
      ["GET", "DELETE"].map((method) => ({ method, target: `/status/${status}` })),
    ),
    // Downloads with conditions and ranges.
    get("/files/a.txt"),
    get("/files/a.txt", { range: "bytes=0-9" }),
    get("/files/a.txt", { range: "bytes=-5" }),
    get("/files/a.txt", { range: "bytes=70000-" }),
    get("/files/a.txt", { range: "bytes=999999-" }),
    get("/files/a.txt", { "if-none-match": '"v1"' }),
    get("/files/a.txt", { "if-none-match": '"v2"' }),
    get("/files/a.txt", { "if-match": '"v2"' }),
    get("/files/a.txt", { "if-modified-since": "Fri, 02 Jan 2026 03:04:05 GMT" }),
    get("/files/a.txt", { "if-range": '"v1"', range: "bytes=1-2" }),
    get("/files/b.json"),
    { method: "HEAD", target: "/files/b.json" },
    // Uploads.
    ...[0, 1, 65_535, 65_536, 65_537, 1_000_000].map((size) => ({
      method: "PUT",
      target: `/files/${size}`,
      body: randomBytes(size),
    })),
    { method: "POST", target: "/form", headers: multipart, body: parts },
    { method: "POST", target: "/form", headers: multipart, body: "--y" },
    // Encodings and headers.
    get("/compressed", { "accept-encoding": "gzip" }),
    get("/compressed", { "accept-encoding": "identity" }),
    get("/headers"),
    { method: "HEAD", target: "/headers" },
    // The application sees the same request.
    ...["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"].map((method) => ({
      method,
      target: `/echo/${method}?a=1&a=2`,
      body: ["GET", "OPTIONS"].includes(method) ? undefined : "body",
    })),
    ...["a%2Fb", "%C3%A9", "a;b=c", "a+b", "~user", "a%20b?q=%20+&r", "?&", "?x=[1]", "a'b(c)*!", "%25"].map((target) =>
      get(`/echo/${target}`),
    ),
    get("/echo/x", { authorization: "Basic dTpw", "x-api-key": "k", baggage: "a=b", accept: "text/html;q=0.5" }),
    get("/echo/x", { authorization: "Bearer opaque-token", cookie: "a=1; b=2; a=3" }),
    get("/echo/x", { "accept-language": "de, en;q=0.5", dnt: "1", "stripe-signature": "t=1,v1=ab", prefer: "wait=1" }),
    get("/echo/x", {
      referer: "https://app.example/",
      "x-requested-with": "XMLHttpRequest",
      "upgrade-insecure-requests": "1",
    }),
    get("/echo/x", { origin: "https://app.example" }),
    { method: "POST", target: "/echo/x", headers: { ...json, "idempotency-key": "k" }, body: '{"a":"é"}' },
    // Errors of the router, and events.
    get("/nothing"),
    get("/events"),
    get("/events", { "last-event-id": "7" }),
    get("/socket"),
    { method: "DELETE", target: "/app" },
  ];
}

test("an application answers the same through the edge as directly", needsGo, async () => {
  const login = await compare({ method: "POST", target: "/login", headers: form, body: "user=ann&password=secret" });
  const cookies = (login.headers["set-cookie"] ?? []).map((cookie) => cookie.split(";")[0] ?? "");
  assert.equal(cookies.length, 2);
  const csrf = cookies[1]?.split("=")[1] ?? "";
  const all = requests(cookies.join("; "), csrf);
  assert.ok(all.length >= 200, `${all.length} requests`);
  for (const sent of all) await compare(sent);
});

test("an upload of 20 MB reaches the application, a longer one is refused", needsGo, async () => {
  const direct = await compare({ method: "PUT", target: "/files/large", body: randomBytes(20 * 1024 * 1024) });
  assert.match(direct.body.toString(), /"size":20971520/);
  assert.ok(edge);
  // The length alone is refused, so none of the body needs to be sent.
  const headers = { "content-length": "25000001", connection: "close" };
  const longer = await send(edge.url, { method: "PUT", target: "/files/larger", headers });
  assert.equal(longer.status, 413);
});

test("the application's WebSocket works through the edge", needsGo, async () => {
  for (const url of [backend, edge?.url]) {
    const socket = new WebSocket(`${String(url).replace("http", "ws")}/socket`);
    await once(socket, "open");
    for (const text of ["one", "zwei", ""]) {
      const answer = once(socket, "message");
      socket.send(text);
      assert.equal(((await answer)[0] as MessageEvent).data, text);
    }
    const closed = once(socket, "close");
    socket.close(4002);
    assert.equal(((await closed)[0] as CloseEvent).code, 4002);
  }
});
