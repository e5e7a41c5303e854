import { spawn } from "node:child_process";
import { cp } from "node:fs/promises";
import { join } from "node:path";
import { buildEdge } from "../edge.ts";
import { wrangler, wranglerEnvironment } from "../edge-server.ts";
import { Failure } from "../failure.ts";
import { root } from "../paths.ts";
import { exitCodeOf } from "../process.ts";
import { archive } from "./archive.ts";

/** Builds and packs the edge as it would be deployed. */
export async function packEdge(version: string, output: string): Promise<void> {
  await buildEdge();
  const folder = join(output, `weir-edge-${version}`);
  const args = ["deploy", "--dry-run", "--outdir", join(folder, "worker")];
  const bundled = await exitCodeOf(
    spawn(process.execPath, [wrangler, ...args], { cwd: root, env: wranglerEnvironment(), stdio: "inherit" }),
  );
  if (bundled !== 0) throw new Failure("wrangler could not bundle the edge", "see its output above");
  await cp(join(root, "dist"), join(folder, "dist"), { recursive: true });
  await cp(join(root, "wrangler.toml"), join(folder, "wrangler.toml"));
  await archive(folder);
}
