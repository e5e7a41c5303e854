import { spawn } from "node:child_process";
import { cp, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { buildEdge } from "../edge.ts";
import { wrangler, wranglerEnvironment } from "../edge-server.ts";
import { Failure } from "../failure.ts";
import { root } from "../paths.ts";
import { exitCodeOf } from "../process.ts";
import { archive } from "./archive.ts";

/** Builds and packs the edge, so that `npx wrangler deploy` and `npx wrangler dev` work in the unpacked folder. */
export async function packEdge(version: string, output: string): Promise<void> {
  await buildEdge();
  const folder = join(output, `weir-edge-${version}`);
  const args = ["deploy", "--dry-run", "--outdir", join(folder, "worker")];
  const bundled = await exitCodeOf(
    spawn(process.execPath, [wrangler, ...args], { cwd: root, env: wranglerEnvironment(), stdio: "inherit" }),
  );
  if (bundled !== 0) throw new Failure("wrangler could not bundle the edge", "see its output above");
  await cp(join(root, "dist"), join(folder, "dist"), { recursive: true });
  await writeFile(join(folder, "wrangler.toml"), packedConfig(await readFile(join(root, "wrangler.toml"), "utf8")));
  await archive(folder);
}

/** wrangler.toml for the bundled Worker, which needs no build. */
function packedConfig(config: string): string {
  const packed = config
    .replace('\nmain = "src/entry.mjs"\n', '\nmain = "worker/entry.js"\nno_bundle = true\n')
    .replace(/^(#.*\n)*\[build\]\n(\w.*\n)*\n/m, "");
  if (!packed.includes("no_bundle") || packed.includes("[build]"))
    throw new Failure("wrangler.toml does not have the form that the release expects", "correct packedConfig");
  return packed;
}
