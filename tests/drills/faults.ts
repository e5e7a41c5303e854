import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import { required } from "../harness/lifetime.ts";
import { type Origin, weir } from "../harness/weir.ts";
import type { Installation } from "./installation.ts";
import { type DatabaseBehindProxy as Database, maxConnections, session } from "./server.ts";

/** A fault of a database. It is over when `happen` resolves. */
export interface Fault {
  name: string;
  /** The binary that the installation starts with, if it is not the one under test. */
  binary?: string;
  happen(installation: Installation): Promise<void>;
}

/** `span`: the duration of the longer faults, in seconds. */
export function faults(span: number): Fault[] {
  const restarted = (how: string, signal: NodeJS.Signals): Fault => ({
    name: `PostgreSQL restarted (${how})`,
    async happen(installation) {
      await installation.stopServer(signal);
      await installation.startServer();
    },
  });
  return [
    restarted("fast", "SIGINT"),
    restarted("immediate", "SIGQUIT"),
    restarted("kill -9", "SIGKILL"),
    {
      name: `PostgreSQL away for ${span} s`,
      async happen(installation) {
        await installation.stopServer("SIGINT");
        await sleep(span * 1000);
        await installation.startServer();
      },
    },
    {
      name: `read-only for ${span} s, as after a failover`,
      async happen(installation) {
        await readOnly(installation, "on");
        await sleep(span * 1000);
        await readOnly(installation, "off");
      },
    },
    {
      name: `no connection left for ${span} s`,
      happen: (installation) => withoutConnections(installation, span),
    },
    {
      name: `frozen for ${span * 2} s behind a proxy`,
      async happen(installation) {
        installation.proxy.freeze();
        await sleep(span * 2000);
        installation.proxy.thaw();
      },
    },
    {
      name: "a pooler answers 08P01 after each of 20 COMMITs",
      happen: (installation) => installation.proxy.failCommits(20, "pooler"),
    },
  ];
}

/** From an older binary to this one, back, and to this one again, process by process. The newer schema stays. */
export function upgrade(from: { name: string; binary: string }): Fault {
  const now = required("WEIR_TEST_BINARY");
  const replace = async (parts: Origin[], binary: string): Promise<void> => {
    for (const part of parts) await part.replaceBy(binary);
    await sleep(5_000);
  };
  return {
    name: `upgraded from ${from.name}, back, and again`,
    binary: from.binary,
    async happen({ parts, env }) {
      const migrated = await weir(["migrate"], env);
      if (migrated.code !== 0) throw new Error(`weir migrate ended with ${migrated.code}\n${migrated.stderr}`);
      // Running processes continue with the newer schema for a while.
      await sleep(5_000);
      await replace(parts.toReversed(), now);
      await replace(parts, from.binary);
      await replace(parts.toReversed(), now);
    },
  };
}

/** Open connections keep their state. So all of them are cut at the start, as in a failover. */
export async function readOnly(installation: Database, is: "on" | "off"): Promise<void> {
  const sql = installation.admin();
  try {
    await sql.unsafe("SET default_transaction_read_only = off");
    await sql.unsafe(`ALTER DATABASE weir SET default_transaction_read_only = ${is}`);
    if (is === "on")
      await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'weir' AND pid <> pg_backend_pid()`;
  } finally {
    await sql.end({ timeout: 2 });
  }
}

export async function withoutConnections(installation: Database, span: number): Promise<void> {
  const taken: postgres.Sql[] = [];
  const until = performance.now() + span * 1000;
  try {
    // Also ends Weir processes that start during this time.
    while (performance.now() < until) {
      const sql = session(installation.appUrl);
      try {
        await sql`SELECT 1`;
        taken.push(sql);
      } catch {
        await sql.end({ timeout: 1 });
        await sleep(100);
      }
      if (taken.length > maxConnections) throw new Error("there are more connections than the server allows");
    }
  } finally {
    await Promise.all(taken.map((sql) => sql.end({ timeout: 2 })));
  }
}
