import { chmod, copyFile } from "node:fs/promises";
import { join } from "node:path";
import { cached } from "./cache.ts";
import { cargoBuild, executableIn } from "./cargo-build.ts";
import { buildFolder } from "./paths.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

/** The binary `weir` of another commit, tag or branch, built once per user. */
export async function buildOlder(ref: string): Promise<string> {
  const remedy = `name a commit, a tag or a branch of this clone: ${ref} is none`;
  const commit = (await run("git", ["rev-parse", "--verify", "--quiet", `${ref}^{commit}`], { remedy })).trim();
  const folder = await cached(`weir-${commit.slice(0, 12)}`, (made) =>
    step(`building weir as it was at ${commit.slice(0, 12)}`, async (pulse) => {
      const source = join(made, "source");
      await run("git", ["worktree", "add", "--detach", source, commit]);
      const messages = await cargoBuild(["--workspace", "--bin", "weir"], {
        cwd: source,
        // Separates its crates from those of this clone.
        env: { CARGO_BUILD_BUILD_DIR: buildFolder, RUSTC_WORKSPACE_WRAPPER: join(source, "scripts/lib/rustc.sh") },
        pulse,
        log: "older-build",
        remedy: "choose a commit that builds with this machine's Rust",
      });
      await copyFile(executableIn(messages), join(made, "weir"));
      await chmod(join(made, "weir"), 0o755);
      await run("git", ["worktree", "remove", "--force", source]);
    }),
  );
  return join(folder, "weir");
}
