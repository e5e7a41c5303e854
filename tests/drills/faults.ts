import postgres from "postgres";
import { sleep } from "../../scripts/lib/sleep.ts";
import { maxConnections, type Stage } from "./stage.ts";

/** Something that happens to a database, and is over when `happen` resolves. */
export interface Fault {
  name: string;
  happen(stage: Stage): Promise<void>;
}

/** `span` is how long the longer ones last, in seconds. */
export function faults(span: number): Fault[] {
  const restarted = (how: string, signal: NodeJS.Signals): Fault => ({
    name: `PostgreSQL restarted (${how})`,
    async happen(stage) {
      await stage.stopServer(signal);
      await stage.startServer();
    },
  });
  return [
    restarted("fast", "SIGINT"),
    restarted("immediate", "SIGQUIT"),
    restarted("kill -9", "SIGKILL"),
    {
      name: `PostgreSQL away for ${span} s`,
      async happen(stage) {
        await stage.stopServer("SIGINT");
        await sleep(span * 1000);
        await stage.startServer();
      },
    },
    {
      name: `read-only for ${span} s, as after a failover`,
      async happen(stage) {
        await readOnly(stage, "on");
        await sleep(span * 1000);
        await readOnly(stage, "off");
      },
    },
    {
      name: `no connection left for ${span} s`,
      happen: (stage) => withoutConnections(stage, span),
    },
    {
      name: `standing still for ${span * 2} s behind a proxy`,
      async happen(stage) {
        stage.proxy.freeze();
        await sleep(span * 2000);
        stage.proxy.thaw();
      },
    },
    {
      name: "a pooler answers 08P01 after each of 20 COMMITs",
      happen: (stage) => stage.proxy.failAfterCommits(20),
    },
  ];
}

/** Connections that are open stay as they were made, so all of them are cut when it begins, as a failover does. */
async function readOnly(stage: Stage, is: "on" | "off"): Promise<void> {
  const sql = stage.admin();
  try {
    await sql.unsafe("SET default_transaction_read_only = off");
    await sql.unsafe(`ALTER DATABASE weir SET default_transaction_read_only = ${is}`);
    if (is === "on")
      await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'weir' AND pid <> pg_backend_pid()`;
  } finally {
    await sql.end({ timeout: 2 });
  }
}

async function withoutConnections(stage: Stage, span: number): Promise<void> {
  const taken: postgres.Sql[] = [];
  const until = performance.now() + span * 1000;
  try {
    // Those of Weir that end meanwhile are taken as well.
    while (performance.now() < until) {
      const sql = postgres(stage.appUrl, { max: 1, onnotice: () => {}, idle_timeout: 0, connect_timeout: 5 });
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
