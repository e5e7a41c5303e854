import { spawn } from "node:child_process";
import { buildEdge } from "./lib/edge.ts";
import { wrangler, wranglerEnvironment } from "./lib/edge-server.ts";
import { root } from "./lib/places.ts";
import { script } from "./lib/stopping.ts";

await script(async () => {
  await buildEdge();
  // CI=1 would keep wrangler from asking whom to log in as.
  const { CI: _, ...env } = wranglerEnvironment();
  const ci = process.env.CI;
  const child = spawn(process.execPath, [wrangler, "deploy", ...process.argv.slice(2)], {
    cwd: root,
    env: ci ? { ...env, CI: ci } : env,
    stdio: "inherit",
  });
  return await new Promise<number>((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => done(code ?? 1));
  });
});
