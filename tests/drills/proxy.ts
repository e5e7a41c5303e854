import { createServer, connect as dial, type Socket } from "node:net";
import { host } from "../../scripts/lib/ports.ts";

/*
 * A proxy in front of PostgreSQL for drills, which start Weir as processes from TypeScript. `bench/src/proxy.rs` delays
 * and counts for benchmarks, and `native/tests/suite/common/proxy.rs` cuts connections inside a Rust test.
 */

/** As Weir's connections send it, and as drivers of other languages do. */
const commits = [Buffer.from("COMMIT\0"), Buffer.from("commit\0")];

/** A pooler's error, as PgBouncer sends it when it has lost the server connection: 08P01. */
const poolerError = errorResponse("ERROR", "08P01", "server conn crashed?");

/** The result of a COMMIT: it never arrives; it takes effect without an answer; or the pooler answers with an error. */
export type CommitFailure = "before" | "after" | "pooler";

/** A proxy between Weir and its database that fails as networks and poolers do. */
export interface FailingProxy {
  port: number;
  /** Stops all traffic without closing connections. */
  freeze(): void;
  thaw(): void;
  /** Delays everything by this many milliseconds, in both directions. */
  delay(milliseconds: number): void;
  /** Closes every connection. */
  drop(): void;
  /** Fails the next COMMITs and closes their connections. Resolves when all of them have arrived; 0 stops it. */
  failCommits(count: number, how: CommitFailure): Promise<void>;
  close(): Promise<void>;
}

export async function startProxy(port: number): Promise<FailingProxy> {
  const pairs = new Set<Pair>();
  let frozen = false;
  let late = 0;
  let failure: CommitFailure = "pooler";
  let toFail = 0;
  let allFailed = (): void => {};

  const server = createServer((client) => {
    const upstream = dial({ port, host });
    const pair: Pair = { client, upstream, failing: undefined };
    pairs.add(pair);
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      from.setNoDelay(true);
      from.on("error", () => to.destroy());
      from.on("close", () => {
        // Clients behind a frozen proxy get no notice until it thaws.
        if (!frozen) end(pair);
      });
    }
    const up = inOrder(upstream);
    const down = inOrder(client);
    client.on("data", (data) => {
      if (toFail > 0 && !pair.failing && commits.some((commit) => data.includes(commit))) {
        toFail--;
        pair.failing = failure;
        if (failure === "before") {
          end(pair);
          if (toFail === 0) allFailed();
          return;
        }
      }
      up(data, late);
    });
    upstream.on("data", (data) => {
      if (!pair.failing) {
        down(data, late);
      } else if (data.includes("COMMIT") || data.includes("ROLLBACK")) {
        // In a failed transaction, COMMIT rolls back.
        if (pair.failing === "pooler") client.end(poolerError);
        else client.destroy();
        upstream.destroy();
        if (toFail === 0) allFailed();
      }
    });
    if (frozen) pause(pair);
  });
  const end = (pair: Pair): void => {
    pairs.delete(pair);
    pair.client.destroy();
    pair.upstream.destroy();
  };
  const drop = (): void => {
    for (const pair of pairs) end(pair);
  };
  await new Promise<void>((done) => server.listen(0, host, done));

  return {
    port: (server.address() as { port: number }).port,
    freeze() {
      frozen = true;
      for (const pair of pairs) pause(pair);
    },
    thaw() {
      frozen = false;
      for (const pair of pairs) {
        if (pair.client.closed || pair.upstream.closed) end(pair);
        pair.client.resume();
        pair.upstream.resume();
      }
    },
    delay(milliseconds) {
      late = milliseconds;
    },
    drop,
    failCommits(count, how) {
      toFail = count;
      failure = how;
      return new Promise((done) => {
        allFailed = done;
      });
    },
    close() {
      drop();
      return new Promise((done) => server.close(() => done()));
    },
  };
}

interface Pair {
  client: Socket;
  upstream: Socket;
  /** Its COMMIT is on the way and will fail like this. */
  failing: CommitFailure | undefined;
}

/** Writes each piece after its delay in milliseconds, in the order of arrival. */
function inOrder(to: Socket): (data: Buffer, later: number) => void {
  const waiting: { data: Buffer; at: number }[] = [];
  const write = (): void => {
    for (let next = waiting[0]; next; next = waiting[0]) {
      const wait = next.at - performance.now();
      if (wait > 0) {
        setTimeout(write, wait);
        return;
      }
      waiting.shift();
      if (!to.destroyed) to.write(next.data);
    }
  };
  return (data, later) => {
    waiting.push({ data, at: performance.now() + later });
    if (waiting.length === 1) write();
  };
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
