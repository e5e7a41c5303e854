import { readFileSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { host } from "../../scripts/lib/ports.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";

/** The effects of handlers outside the database: a program appends a line to a file, an endpoint remembers. */
export class Effects {
  readonly port: number;
  readonly url: string;
  /** The program. Its first attempt fails if the arguments ask for it. */
  readonly script: string;
  #file: string;
  #posted: Map<number, number>;

  private constructor(port: number, posted: Map<number, number>) {
    this.port = port;
    this.url = `http://${host}:${port}/`;
    this.#posted = posted;
    this.#file = join(required("WEIR_TEST_FOLDER"), `effects-${port}`);
    writeFileSync(this.#file, "");
    this.script = [
      "read -r args",
      `case "$args" in *'"fails":1'*) test "$WEIR_ATTEMPT" -gt 1 || exit 1 ;; esac`,
      "sleep 0.03",
      `echo "$WEIR_JOB_ID" >> '${this.#file}'`,
      "echo '{}'",
    ].join("; ");
  }

  static async start(lifetime: Lifetime): Promise<Effects> {
    const posted = new Map<number, number>();
    const server = createServer((request, response) => {
      // The process may be killed while it sends.
      void answer(request, response, posted).catch(() => response.destroy());
    });
    server.on("clientError", (_error, socket) => socket.destroy());
    await new Promise<void>((done) => server.listen(0, host, done));
    whenOver(lifetime, () => {
      server.closeAllConnections();
      server.close();
    });
    return new Effects((server.address() as { port: number }).port, posted);
  }

  /** The number of effects of each job. */
  perJob(): Map<number, number> {
    const counts = new Map(this.#posted);
    for (const line of readFileSync(this.#file, "utf8").split("\n")) {
      if (line) counts.set(Number(line), (counts.get(Number(line)) ?? 0) + 1);
    }
    return counts;
  }
}

async function answer(request: IncomingMessage, response: ServerResponse, posted: Map<number, number>): Promise<void> {
  let body = "";
  for await (const data of request) body += String(data);
  const { fails } = JSON.parse(body) as { fails: number };
  const job = Number(request.headers["weir-job-id"]);
  if (fails === 1 && request.headers["weir-attempt"] === "1") {
    response.writeHead(500).end();
    return;
  }
  await sleep(20 + Math.random() * 60);
  posted.set(job, (posted.get(job) ?? 0) + 1);
  response.writeHead(200, { "Content-Type": "application/json" }).end("{}");
}
