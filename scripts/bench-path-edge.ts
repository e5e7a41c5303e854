import { once } from "node:events";
import { buildEdge } from "./lib/edge.ts";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { stayQuietFor } from "./lib/progress.ts";

stayQuietFor(1500);
Object.assign(process.env, wranglerEnvironment());

/**
 * A part of the benchmark `path`: the edge in workerd, without the development proxy, in front of the origin in the
 * environment. Prints its address as a line of JSON, and ends when its standard input does.
 */
await runMain(async () => {
  await buildEdge();
  const { edgeName, startEdge } = await import("../tests/edge/workerd.ts");
  const edge = await startEdge(
    { after: onExit },
    {
      originUrl: needed("ORIGIN_URL"),
      secrets: { jwt: needed("JWT_SECRET"), edge: needed("EDGE_SECRET") },
      // Without the page: in the local runtime, a Worker with static files runs behind three other Workers.
      worker: { assets: undefined, unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }] },
    },
  );
  const { host } = await edge.miniflare.unsafeGetDirectURL(edgeName);
  console.log(JSON.stringify({ address: host, process: process.pid }));
  process.stdin.resume();
  await once(process.stdin, "end");
});

function needed(name: string): string {
  const value = process.env[name];
  if (!value) throw new Failure(`${name} is not set`, "npm run -s bench -- path");
  return value;
}
