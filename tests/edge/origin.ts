import { createHash } from "node:crypto";
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from "node:http";
import { type JWTPayload, jwtVerify } from "jose";
import { freshSecrets, type Secrets } from "../harness/identity.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";

/** A request that the origin received. */
export interface Received {
  method: string;
  /** Path and query. */
  target: string;
  headers: IncomingHttpHeaders;
  /** The header names in the order sent, with repetitions. */
  names: string[];
  /** The claims of the edge's assertion, verified as the real origin does. */
  claims: JWTPayload & { client_address: string; token_exp?: number; htm: string; htd: string };
  body: string;
}

export interface Origin {
  url: string;
  secrets: Secrets;
  /** All requests so far, except reports. */
  received: Received[];
  /** All reports so far, verified. */
  reports: EdgeReport[];
  /** Responds to a report. */
  answerReport: (report: EdgeReport, response: ServerResponse) => unknown;
  /** The last request. */
  last(): Received;
}

/** See policy/src/counts.rs. */
export interface EdgeReport {
  id: string;
  requests: Record<string, number>;
  events: Record<string, number>;
}

/** The sum of all reports. A repeated report counts once. */
export function total(reports: EdgeReport[]): { requests: Record<string, number>; events: Record<string, number> } {
  const sum = { requests: {} as Record<string, number>, events: {} as Record<string, number> };
  for (const report of new Map(reports.map((report) => [report.id, report])).values()) {
    for (const kind of ["requests", "events"] as const) {
      for (const [name, count] of Object.entries(report[kind])) sum[kind][name] = (sum[kind][name] ?? 0) + count;
    }
  }
  return sum;
}

export type Respond = (request: IncomingMessage, response: ServerResponse, origin: Origin) => unknown;

/**
 * A small origin that verifies each assertion as the real one does and returns what it received. `respond`, if given,
 * reads the body and responds instead.
 */
export async function startOrigin(lifetime: Lifetime, respond?: Respond): Promise<Origin> {
  const port = await freePort();
  const origin: Origin = {
    url: `http://127.0.0.1:${port}`,
    secrets: freshSecrets(),
    received: [],
    reports: [],
    answerReport: (_, response) => response.writeHead(204).end(),
    last() {
      const last = origin.received.at(-1);
      if (!last) throw new Error("nothing has reached the origin");
      return last;
    },
  };
  const key = Buffer.from(origin.secrets.edge);
  const server = createServer({ maxHeaderSize: 64 * 1024 }, (request, response) => {
    void (async () => {
      try {
        if (request.url === "/api/edge/counts") {
          const report = await receiveReport(request, key);
          origin.reports.push(report);
          origin.answerReport(report, response);
          return;
        }
        if (respond) {
          await respond(request, response, origin);
          return;
        }
        const received = await receive(request, key);
        origin.received.push(received);
        response.writeHead(200, { "content-type": "application/json" });
        response.end(JSON.stringify(received));
      } catch (error) {
        response.writeHead(418, { "content-type": "text/plain" });
        response.end(String(error));
      }
    })();
  });
  server.keepAliveTimeout = 60_000;
  await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  whenOver(lifetime, async () => {
    server.closeAllConnections();
    await new Promise((done) => server.close(done));
  });
  return origin;
}

/** The `htd` claim for a path and query. */
const digest = (target: string): string => createHash("sha256").update(target).digest("base64url");

async function receiveReport(request: IncomingMessage, key: Uint8Array): Promise<EdgeReport> {
  const { payload } = await jwtVerify<{ htm: string; htd: string }>(
    String(request.headers["weir-assertion"] ?? ""),
    key,
    {
      algorithms: ["HS256"],
      issuer: "weir-edge",
      audience: "weir-origin/edge",
    },
  );
  if (request.method !== payload.htm || digest(request.url ?? "") !== payload.htd)
    throw new Error("asserted for another request");
  let body = "";
  for await (const chunk of request) body += String(chunk);
  return { id: String(payload.jti), ...(JSON.parse(body) as Omit<EdgeReport, "id">) };
}

/** Reads a request and verifies its assertion. Throws if it is not valid. */
export async function receive(request: IncomingMessage, key: Uint8Array): Promise<Received> {
  const method = request.method ?? "";
  const target = request.url ?? "";
  const { payload } = await jwtVerify<Received["claims"]>(String(request.headers["weir-assertion"] ?? ""), key, {
    algorithms: ["HS256"],
    issuer: "weir-edge",
    audience: "weir-origin",
  });
  if (payload.htm !== method || payload.htd !== digest(target)) {
    throw new Error(`asserted ${payload.htm} ${payload.htd}, got ${method} ${target}`);
  }
  if ((payload.exp ?? 0) - (payload.iat ?? 0) !== 30) throw new Error("an assertion lives for 30 seconds");
  let body = "";
  for await (const chunk of request) body += String(chunk);
  return {
    method,
    target,
    headers: request.headers,
    names: request.rawHeaders.filter((_, index) => index % 2 === 0),
    claims: payload,
    body,
  };
}
