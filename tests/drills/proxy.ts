import { createServer, connect as dial, type Socket } from "node:net";
import { host } from "../../scripts/lib/ports.ts";

const commit = Buffer.from("COMMIT\0");

/** A pooler's own error, as PgBouncer sends it for a server connection that it has lost: 08P01. */
const poolerError = errorResponse("ERROR", "08P01", "server conn crashed?");

/** What stands between Weir and its database, and fails as networks and poolers do. */
export interface FailingProxy {
  port: number;
  /** Lets nothing through and closes nothing. */
  freeze(): void;
  thaw(): void;
  /** Lets the next COMMITs take effect, and answers them with a pooler's error. Resolves when all of them came. */
  failAfterCommits(count: number): Promise<void>;
  close(): Promise<void>;
}

export async function startProxy(port: number): Promise<FailingProxy> {
  const pairs = new Set<Pair>();
  let frozen = false;
  let toFail = 0;
  let allFailed = (): void => {};

  const server = createServer((client) => {
    const upstream = dial({ port, host });
    const pair: Pair = { client, upstream, isFailing: false };
    pairs.add(pair);
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      from.setNoDelay(true);
      from.on("error", () => to.destroy());
      from.on("close", () => {
        pairs.delete(pair);
        // Whoever is behind a frozen proxy is not told.
        if (!frozen) to.destroy();
      });
    }
    client.on("data", (data) => {
      if (toFail > 0 && data.includes(commit)) {
        toFail--;
        pair.isFailing = true;
      }
      upstream.write(data);
    });
    upstream.on("data", (data) => {
      if (!pair.isFailing) {
        client.write(data);
      } else if (data.includes("COMMIT")) {
        client.end(poolerError);
        upstream.destroy();
        if (toFail === 0) allFailed();
      }
    });
    if (frozen) pause(pair);
  });
  await new Promise<void>((done) => server.listen(0, host, done));

  return {
    port: (server.address() as { port: number }).port,
    freeze() {
      frozen = true;
      for (const pair of pairs) pause(pair);
    },
    thaw() {
      frozen = false;
      for (const { client, upstream } of pairs) {
        client.resume();
        upstream.resume();
      }
    },
    failAfterCommits(count) {
      toFail = count;
      return new Promise((done) => {
        allFailed = done;
      });
    },
    close() {
      for (const { client, upstream } of pairs) {
        client.destroy();
        upstream.destroy();
      }
      return new Promise((done) => server.close(() => done()));
    },
  };
}

interface Pair {
  client: Socket;
  upstream: Socket;
  isFailing: boolean;
}

function pause({ client, upstream }: Pair): void {
  client.pause();
  upstream.pause();
}

/** An ErrorResponse of PostgreSQL's wire protocol. */
function errorResponse(severity: string, code: string, message: string): Buffer {
  const fields = Buffer.from(`S${severity}\0V${severity}\0C${code}\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write("E");
  head.writeInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}
