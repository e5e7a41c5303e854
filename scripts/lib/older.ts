import { chmod, copyFile, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { cached, makeCached, usingCache } from "./cache.ts";
import { rustcWrapper } from "./cargo.ts";
import { cargoBuild, executableIn } from "./cargo-build.ts";
import { buildFolder } from "./paths.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

/** The binary `weir` of another commit, tag or branch, built once per user. */
export async function buildOlder(ref: string): Promise<string> {
  const remedy = `name a commit, a tag or a branch of this clone: ${ref} is none`;
  const commit = (await run("git", ["rev-parse", "--verify", "--quiet", `${ref}^{commit}`], { remedy })).trim();
  const name = `weir-${commit.slice(0, 12)}`;
  const folder = cached(name) ?? (await usingCache(() => makeCached(name, (made) => build(commit, made))));
  return join(folder, "weir");
}

function build(commit: string, folder: string): Promise<void> {
  return step(`building weir as it was at ${commit.slice(0, 12)}`, async (pulse) => {
    const source = join(folder, "source");
    await mkdir(source);
    await run("git", ["archive", "--format=tar", "--output", join(folder, "source.tar"), commit]);
    await run("tar", ["-xf", join(folder, "source.tar"), "-C", source]);
    // Its files are as old as the commit, so cargo must not compare them with this clone's builds.
    const wrapper = join(folder, "rustc.sh");
    await copyFile(rustcWrapper, wrapper);
    const messages = await cargoBuild(["--workspace", "--bin", "weir"], {
      cwd: source,
      env: { CARGO_BUILD_BUILD_DIR: buildFolder, RUSTC_WORKSPACE_WRAPPER: wrapper },
      pulse,
      log: "older-build",
      remedy: "choose a commit that builds with this machine's Rust",
    });
    await copyFile(executableIn(messages), join(folder, "weir"));
    await chmod(join(folder, "weir"), 0o755);
    await rm(source, { recursive: true });
    await rm(join(folder, "source.tar"));
    await rm(wrapper);
  });
}
