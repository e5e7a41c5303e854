import assert from "node:assert/strict";
import { createServer, request as httpRequest } from "node:http";
import { createConnection, type Socket } from "node:net";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { until } from "../harness/until.ts";
import { type Origin, startOrigin } from "./origin.ts";
import { type Edge, startEdge, type Variable } from "./workerd.ts";

// Request bodies. A client's misuse of them is not an outage of the origin.

const outages = ["origin_unreachable", "origin_timed_out"];

const start = (origin: Origin, vars: Record<string, Variable> = {}): Promise<Edge> =>
  startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { ANON_LIMIT: 1000, REPORT_INTERVAL_MS: 100, ...vars },
      worker: { ratelimits: {} },
    },
  );

/** Sends the head of a submission. Resolves to the status when the edge has answered and closed the connection. */
function begin(edge: Edge, ...headers: string[]): { socket: Socket; status: Promise<number | undefined> } {
  const socket = createConnection(Number(new URL(edge.url).port), "127.0.0.1");
  let text = "";
  socket.on("data", (data) => (text += String(data)));
  socket.on("error", () => undefined);
  socket.write(
    `${["POST /api/jobs/analysis HTTP/1.1", "Host: x", "CF-Connecting-IP: 203.0.113.1", ...headers].join("\r\n")}\r\n\r\n`,
  );
  const answered = until("an answer", () => text.includes("\r\n\r\n") || socket.closed);
  return { socket, status: answered.then(() => (text ? Number(text.split(" ")[1]) : undefined)) };
}

const events = (origin: Origin): string[] => origin.reports.flatMap((report) => Object.keys(report.events));

test("a body too large by its Content-Length is not forwarded", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  for (let sent = 0; sent < 10; sent++) {
    const answer = await edge.from("203.0.113.1")("/api/jobs/analysis", {
      method: "POST",
      body: Buffer.alloc(3_000_000, 32),
    });
    assert.equal(answer.status, 413);
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    assert.equal(((await answer.json()) as { title: string }).title, "Content Too Large");
  }
  assert.equal(origin.received.length, 0);
  const most = await edge.from("203.0.113.1")("/api/jobs/analysis", {
    method: "POST",
    body: Buffer.alloc(262_144, 32),
  });
  assert.equal(most.status, 200);
  assert.equal(origin.last().body.length, 262_144);
  assert.equal(origin.last().headers["content-length"], "262144");
});

test("a body without Content-Length is refused when it has become too large", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { MAX_BODY_BYTES: 100_000 });
  const { socket, status } = begin(edge, "Transfer-Encoding: chunked");
  const chunk = `2710\r\n${"x".repeat(10_000)}\r\n`;
  for (let sent = 0; sent < 11; sent++) socket.write(chunk);
  assert.equal(await status, 413);
  socket.destroy();

  const whole = begin(edge, "Transfer-Encoding: chunked");
  for (let sent = 0; sent < 10; sent++) whole.socket.write(chunk);
  whole.socket.write("0\r\n\r\n");
  assert.equal(await whole.status, 200);
  whole.socket.destroy();
  assert.equal(origin.last().body.length, 100_000);
  assert.equal(origin.received.length, 1, "the first one was broken off");
  assert.deepEqual(
    events(origin).filter((event) => outages.includes(event)),
    [],
  );
});

for (const framing of ["Content-Length: 1000", "Transfer-Encoding: chunked"]) {
  test(`an upload with ${framing} that stops halfway is the client's fault`, async () => {
    const origin = await startOrigin({ after });
    const edge = await start(origin);
    const { socket, status } = begin(edge, framing);
    socket.write("5\r\nhello\r\n");
    // Wait until the origin could have received the first bytes.
    await wait(200);
    socket.end();
    assert.equal(await status, 400);
    await until("it is reported", () => events(origin).includes("client_aborted"));
    assert.deepEqual(
      events(origin).filter((event) => outages.includes(event)),
      [],
    );
    assert.equal(origin.received.length, 0, "nothing incomplete is taken for a request");
  });
}

test("a client that disconnects during a request is not an outage", async () => {
  let asked = 0;
  const origin = await startOrigin({ after }, (request) => {
    asked++;
    request.resume();
  });
  const edge = await start(origin, { ORIGIN_TIMEOUT_MS: 20_000 });
  const hangUp = new AbortController();
  const sent = edge
    .from("203.0.113.1")("/api/usage", { signal: hangUp.signal })
    .catch(() => undefined);
  await until("the origin to be asked", () => asked === 1);
  hangUp.abort();
  await sent;
  // Another request makes the isolate report its counts.
  await edge.from("203.0.113.1")("/api/none/../../x");
  await until("a report", () => origin.reports.length > 0);
  assert.deepEqual(
    events(origin).filter((event) => outages.includes(event)),
    [],
  );
});

test("the origin's time begins when the request has been sent", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { ORIGIN_TIMEOUT_MS: 2000 });
  const { socket, status } = begin(edge, "Content-Length: 10");
  socket.write("hello");
  await wait(2500);
  socket.write("world");
  assert.equal(await status, 200);
  socket.destroy();
  assert.equal(origin.last().body, "helloworld");
});

test("an upload that takes too long gets a 408", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { UPLOAD_TIMEOUT_MS: 300 });
  const { socket, status } = begin(edge, "Content-Length: 10");
  socket.write("hello");
  assert.equal(await status, 408);
  socket.destroy();
  await until("it is reported", () => events(origin).includes("client_slow"));
  assert.deepEqual(
    events(origin).filter((event) => outages.includes(event)),
    [],
  );
});

test("a slow upload that does not pause may take longer", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin, { UPLOAD_TIMEOUT_MS: 2000 });
  const steady = begin(edge, "Content-Length: 160000");
  for (let sent = 0; sent < 8; sent++) {
    steady.socket.write(Buffer.alloc(20_000, 32));
    await wait(500);
  }
  assert.equal(await steady.status, 200);
  steady.socket.destroy();
  const paused = begin(edge, "Content-Length: 160000");
  paused.socket.write(Buffer.alloc(100_000, 32));
  assert.equal(await paused.status, 408);
  paused.socket.destroy();
});

test("an origin that refuses an upload and closes resets no client", async () => {
  const origin = await startOrigin({ after }, (_, response) =>
    response.writeHead(413, { Connection: "close" }).end("too large"),
  );
  const edge = await start(origin, { MAX_BODY_BYTES: 50_000_000 });
  for (let sent = 0; sent < 24; sent++) {
    const upload = { method: "POST", body: Buffer.alloc(20_000_000) };
    const answer = await edge.from("203.0.113.1")("/api/jobs/analysis", upload);
    // The runtime loses the answer if the connection closes before it has read it.
    assert.ok([413, 502].includes(answer.status), `${answer.status} after ${sent}`);
    if (answer.status === 413) assert.equal(await answer.text(), "too large");
    else await answer.text();
  }
});

test("an origin that breaks off during an upload is an outage", async () => {
  const origin = await startOrigin({ after }, (request) => request.once("data", () => request.socket.destroy()));
  const edge = await start(origin, { MAX_BODY_BYTES: 50_000_000 });
  const { socket, status } = begin(edge, "Content-Length: 5000000");
  socket.write(Buffer.alloc(100_000));
  assert.equal(await status, 502);
  socket.destroy();
  await until("it is reported", () => events(origin).includes("origin_unreachable"));

  const silent = createServer((request) => request.pause());
  await new Promise<void>((done) => silent.listen(0, "127.0.0.1", done));
  after(() => silent.closeAllConnections());
  after(() => void silent.close());
  const { port } = silent.address() as { port: number };
  const stuck = await startEdge(
    { after },
    {
      originUrl: `http://127.0.0.1:${port}`,
      vars: { MAX_BODY_BYTES: 50_000_000, ORIGIN_TIMEOUT_MS: 500, UPLOAD_TIMEOUT_MS: 2000 },
    },
  );
  const upload = begin(stuck, "Content-Length: 40000000");
  upload.socket.write(Buffer.alloc(40_000_000));
  assert.equal(await upload.status, 504);
  upload.socket.destroy();
  await stuck.logged("origin_timed_out");
});

test("GET and HEAD are always forwarded without a body", async () => {
  const origin = await startOrigin({ after });
  const edge = await start(origin);
  const { port } = new URL(edge.url);
  for (const method of ["GET", "HEAD"]) {
    for (const body of ["", "abc"]) {
      const status = await new Promise<number | undefined>((done, failed) => {
        const outgoing = httpRequest(
          {
            port,
            path: "/api/lanes",
            method,
            headers: { "content-length": body.length, "cf-connecting-ip": "203.0.113.1" },
          },
          (response) => {
            response.resume();
            done(response.statusCode);
          },
        );
        outgoing.on("error", failed);
        outgoing.end(body);
      });
      assert.equal(status, 200, `${method} with ${body.length} bytes`);
      assert.equal(origin.last().method, method);
      assert.equal(origin.last().headers["content-length"], undefined);
      assert.equal(origin.last().headers["transfer-encoding"], undefined);
    }
  }
  assert.deepEqual(
    events(origin).filter((event) => outages.includes(event)),
    [],
  );
});
