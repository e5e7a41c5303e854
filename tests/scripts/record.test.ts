import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import { it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";

it("a recording ends with a failed job without waiting for it", async (t) => {
  const job = { id: 7, status: "failed", error: { message: "out of paper" } };
  const wanted: unknown[] = [];
  const server = createServer(async (request, response) => {
    if (request.url?.endsWith("/token")) wanted.push(await json(request));
    const answer = request.url?.endsWith("/token")
      ? { token: "some" }
      : request.url?.endsWith("/batch")
        ? { jobs: [job] }
        : [job];
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(answer));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  // A separate folder, so that it does not find a running stack of this clone.
  const state = mkdtempSync(join(tmpdir(), "weir-record-"));
  t.after(() => rmSync(state, { recursive: true }));
  const env = { ...process.env, WEIR_STATE: state, WEIR_EDGE_PORT: String(port) };
  const recorded = await attempt(process.execPath, [join(root, "scripts", "record.ts")], { env, timeout: 20_000 });
  assert.equal(recorded.code, 1, recorded.output);
  assert.match(recorded.output, /job 7 is failed: out of paper/);
  // Three customers and the newcomer can use all workers.
  assert.deepEqual(wanted, Array(4).fill({ plan: "free", burst: 3 }));
});
