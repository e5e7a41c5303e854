import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, request as httpRequest, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { receive, startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

// WebSockets through the edge, and what the Workers runtime cannot pass.

interface Upgrade {
  claims: Record<string, unknown>;
  headers: IncomingMessage["headers"];
}

const origin = await startOrigin({ after });
const upgrades: Upgrade[] = [];

/** An echo server for WebSockets with short messages. It answers other requests with trailers and an early hint. */
const server = createServer((_request, response) => {
  response.writeEarlyHints({ link: "</style.css>; rel=preload" });
  response.writeHead(200, { trailer: "X-Checksum", "content-type": "text/plain" });
  response.write("body");
  response.addTrailers({ "x-checksum": "1" });
  response.end();
});
server.on("upgrade", async (request, socket) => {
  if (request.url === "/ws/refused") {
    socket.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Reason: origin\r\n\r\nno");
    return;
  }
  const { claims } = await receive(request, Buffer.from(origin.secrets.edge));
  upgrades.push({ claims, headers: request.headers });
  const accept = createHash("sha1")
    .update(`${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
    .digest("base64");
  socket.write(
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
      `Sec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: echo.v1\r\n\r\n`,
  );
  let data = Buffer.alloc(0);
  socket.on("data", (chunk: Buffer) => {
    data = Buffer.concat([data, chunk]);
    while (data.length >= 6 && data.length >= 6 + (data.readUInt8(1) & 127)) {
      const length = data.readUInt8(1) & 127;
      const mask = data.subarray(2, 6);
      const payload = data.subarray(6, 6 + length).map((byte, at) => byte ^ mask.readUInt8(at % 4));
      socket.write(Buffer.concat([Buffer.from([data.readUInt8(0), length]), payload]));
      // A server ends the connection after the closing handshake.
      if ((data.readUInt8(0) & 15) === 8) socket.end();
      data = data.subarray(6 + length);
    }
  });
  socket.on("error", () => socket.destroy());
});
await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
after(() => {
  server.closeAllConnections();
  server.close();
});

/** A Worker that accepts WebSockets. */
const site = {
  name: "site",
  compatibilityDate: "2026-09-01",
  modules: true,
  script: `export default {
    fetch(request) {
      if (request.headers.get("upgrade") !== "websocket") return new Response("no upgrade", { status: 426 });
      const [client, server] = Object.values(new WebSocketPair());
      server.accept();
      server.addEventListener("message", ({ data }) => server.send("site: " + data));
      const headers = { "sec-websocket-protocol": "echo.v1" };
      return new Response(null, { status: 101, webSocket: client, headers });
    },
  }`,
};

const edge = await startEdge(
  { after },
  {
    originUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    secrets: origin.secrets,
    without: ["LIMITED_ROUTES"],
    vars: {
      ORIGINS: { site: { service: "SITE" } },
      ROUTES: [
        { path: "/ws/limited", limits: [{ by: "address", limit: 2, window: "1m" }] },
        { path: "/ws/*" },
        { path: "/site/*", origin: "site" },
      ],
    },
    worker: { serviceBindings: { SITE: "site" } },
    beside: [site],
  },
);

interface Client {
  socket: WebSocket;
  /** The next message. */
  next(): Promise<unknown>;
}

async function connect(path: string, headers: Record<string, string> = {}): Promise<Client> {
  // Node's constructor also takes headers.
  const options = { protocols: ["echo.v1"], headers: { "CF-Connecting-IP": "203.0.113.80", ...headers } };
  const socket = new WebSocket(edge.url.replace("http", "ws") + path, options as unknown as string[]);
  socket.binaryType = "arraybuffer";
  const opened = await Promise.race([once(socket, "open").then(() => true), once(socket, "error").then(() => false)]);
  if (!opened) throw new Error("the WebSocket did not open");
  return { socket, next: async () => ((await once(socket, "message"))[0] as MessageEvent).data };
}

/** Asks for an upgrade and returns the answer, if it is none. */
function refused(path: string): Promise<{ status: number; headers: IncomingMessage["headers"] }> {
  return new Promise((done, failed) => {
    const key = "dGhlIHNhbXBsZSBub25jZQ==";
    const asked = httpRequest(edge.url + path, {
      headers: {
        connection: "Upgrade",
        upgrade: "websocket",
        "sec-websocket-key": key,
        "sec-websocket-version": "13",
        "cf-connecting-ip": "203.0.113.81",
      },
    });
    asked.on("response", (response) => {
      response.resume();
      done({ status: response.statusCode ?? 0, headers: response.headers });
    });
    asked.on("upgrade", (_, socket) => {
      socket.destroy();
      done({ status: 101, headers: {} });
    });
    asked.on("error", failed).end();
  });
}

test("a WebSocket passes messages in both directions, and the close code", { timeout: 30_000 }, async () => {
  const authorization = `Bearer ${await tokenFor(origin.secrets.jwt, "user-1")}`;
  const { socket, next } = await connect("/ws/echo?room=1", { authorization, "x-user-id": "root" });
  for (const text of ["hello", "héllo", ""]) {
    const answer = next();
    socket.send(text);
    assert.equal(await answer, text);
  }
  const answer = next();
  socket.send(new Uint8Array([0, 255, 1]));
  assert.deepEqual(new Uint8Array((await answer) as ArrayBuffer), new Uint8Array([0, 255, 1]));
  assert.equal(socket.protocol, "echo.v1");
  const closed = once(socket, "close");
  socket.close(4001, "done");
  assert.equal(((await closed)[0] as CloseEvent).code, 4001);
  const [upgrade] = upgrades.splice(0);
  assert.equal(upgrade?.claims.sub, "user-1");
  assert.equal(upgrade?.headers["x-user-id"], undefined);
  assert.equal(upgrade?.headers.authorization, undefined);
});

test("a Worker behind a service binding accepts a WebSocket", { timeout: 30_000 }, async () => {
  const { socket, next } = await connect("/site/chat");
  const answer = next();
  socket.send("hello");
  assert.equal(await answer, "site: hello");
  socket.close();
});

test("an upgrade counts as one request, and an origin's refusal passes", { timeout: 30_000 }, async () => {
  const { status, headers } = await refused("/ws/refused");
  assert.equal(status, 403);
  assert.equal(headers["x-reason"], "origin");
  assert.equal((await refused("/ws/limited")).status, 101);
  assert.equal((await refused("/ws/limited")).status, 101);
  assert.equal((await refused("/ws/limited")).status, 429);
  assert.equal((await refused("/other")).status, 404);
});

test("trailers and early hints do not pass", { timeout: 30_000 }, async () => {
  const seen: string[] = [];
  const response = await new Promise<IncomingMessage>((done, failed) => {
    const asked = httpRequest(`${edge.url}/ws/trailers`, { headers: { "cf-connecting-ip": "203.0.113.82" } });
    asked.on("information", ({ statusCode }) => seen.push(String(statusCode)));
    asked.on("response", done).on("error", failed).end();
  });
  let body = "";
  for await (const chunk of response) body += String(chunk);
  assert.equal(response.statusCode, 200);
  assert.equal(body, "body");
  assert.deepEqual(response.trailers, {});
  assert.deepEqual(seen, []);
});
