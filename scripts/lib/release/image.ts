import { existsSync } from "node:fs";
import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { rootCertificates } from "node:tls";
import { Failure } from "../failure.ts";
import { root, state } from "../paths.ts";
import { attempt, run } from "../process.ts";
import { archiveOf } from "./binary.ts";

/** The images' names for the architectures of static binaries. */
const architectures = { amd64: "x86_64-unknown-linux-musl", arm64: "aarch64-unknown-linux-musl" };

/**
 * Builds an image from the binaries in `output`, for one architecture or both, as an OCI archive in the same folder.
 */
export async function buildImage(version: string, output: string): Promise<void> {
  const context = join(state, "image");
  const name = `weir:${version}`;
  await rm(context, { recursive: true, force: true });
  const platforms: string[] = [];
  for (const [architecture, target] of Object.entries(architectures)) {
    const packed = join(output, `${archiveOf(version, target)}.tar.gz`);
    if (!existsSync(packed)) continue;
    await mkdir(join(context, architecture), { recursive: true });
    await run("tar", [
      "-xzf",
      packed,
      "--strip-components=1",
      "-C",
      join(context, architecture),
      "--wildcards",
      "*/weir",
    ]);
    platforms.push(`linux/${architecture}`);
  }
  if (platforms.length === 0)
    throw new Failure("no binary for an image", `build one: npm run release -- ${version} x86_64-unknown-linux-musl`);
  await copyFile(join(root, "deploy", "weir.toml"), join(context, "weir.toml"));
  // Mozilla's certificates, from Node, because an image from scratch has none.
  await writeFile(join(context, "ca-certificates.crt"), `${rootCertificates.join("\n")}\n`);

  const remedy = "see its output above; buildah must be installed";
  const file = join(root, "deploy", "Containerfile");
  // Otherwise an existing list of this name would grow. The first time, there is none.
  await attempt("buildah", ["manifest", "rm", name]);
  await run(
    "buildah",
    ["build", "--platform", platforms.join(","), "--manifest", name, "--timestamp", "0", "--file", file, context],
    { remedy, log: "image" },
  );
  const image = join(output, `weir-${version}-image.tar`);
  await rm(image, { force: true });
  await run("buildah", ["manifest", "push", "--all", name, `oci-archive:${image}:${name}`], { remedy });
}
