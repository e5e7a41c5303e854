import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { buildEdge } from "./lib/edge.ts";
import { wrangler, wranglerEnvironment } from "./lib/edge-server.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { root, state } from "./lib/paths.ts";
import { exitCodeOf, run } from "./lib/process.ts";
import { say } from "./lib/progress.ts";

const output = join(state, "release");

/** Builds the files of a release in .weir/release: the binary, the edge and their checksums. */
await runMain(async () => {
  const version = process.argv[2];
  if (!version || !/^v\d+\.\d+\.\d+[\w.-]*$/.test(version))
    throw new Failure(`"${version ?? ""}" is not a version`, "name the tag: npm run release -- v0.1.0");
  const weir = await buildNative("native");
  await buildEdge();
  await rm(output, { recursive: true, force: true });

  const native = `weir-${version}-${process.platform}-${process.arch}`;
  await mkdir(join(output, native), { recursive: true });
  await cp(weir, join(output, native, "weir"));
  for (const name of ["weir.toml", "deploy", "LICENSE-APACHE", "LICENSE-MIT"])
    await cp(join(root, name), join(output, native, name), { recursive: true });
  await archive(native);

  const edge = `weir-edge-${version}`;
  const args = ["deploy", "--dry-run", "--outdir", join(output, edge, "worker")];
  const bundled = await exitCodeOf(
    spawn(process.execPath, [wrangler, ...args], { cwd: root, env: wranglerEnvironment(), stdio: "inherit" }),
  );
  if (bundled !== 0) throw new Failure("wrangler could not bundle the edge", "see its output above");
  await cp(join(root, "dist"), join(output, edge, "dist"), { recursive: true });
  await cp(join(root, "wrangler.toml"), join(output, edge, "wrangler.toml"));
  await archive(edge);

  const sums: string[] = [];
  for (const name of await readdir(output)) {
    const hash = createHash("sha256").update(await readFile(join(output, name)));
    sums.push(`${hash.digest("hex")}  ${name}\n`);
  }
  await writeFile(join(output, "SHA256SUMS"), sums.join(""));
  say(`the release is in ${output}`);
});

/** Replaces a folder with an archive of it. The same content gives the same archive. */
async function archive(name: string): Promise<void> {
  const same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"];
  await run("tar", [...same, "-czf", join(output, `${name}.tar.gz`), "-C", output, name]);
  await rm(join(output, name), { recursive: true });
}
