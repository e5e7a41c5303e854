import { chmod, constants, copyFile, mkdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { usingCache } from "./cache.ts";
import { requireCargo } from "./cargo.ts";
import { cargoBuild, executableIn } from "./cargo-build.ts";
import { withLock } from "./lock.ts";
import { buildLock, state } from "./paths.ts";
import { step } from "./progress.ts";

/** Makes a module for the edge's runtime of the compiled edge. */
export const bindgen = "weir-bindgen";

/** Builds the binary `weir`, with cargo's development profile or the optimised one, for this machine or a target. */
export function buildNative(profile: "dev" | "native" = "dev", target?: string): Promise<string> {
  return withLock(buildLock, "building in this clone", () => usingCache(() => build(profile, target)));
}

async function build(profile: "dev" | "native", target?: string): Promise<string> {
  await requireCargo();
  const weirBinary = join(
    state,
    "bin",
    ["weir", ...(profile === "dev" ? [] : [profile]), ...(target ? [target] : [])].join("-"),
  );
  // The development build has the features of the whole workspace, as `npm test` has, so that the two share the
  // dependencies. What is measured and released is built without the others.
  const packages = profile === "dev" ? ["--workspace"] : ["--package", "weir-native"];
  const flags = [...packages, "--bin", "weir", "--profile", profile];
  // Built beside it, what the edge's build needs costs next to nothing: the last steps leave cores idle.
  if (profile === "dev") flags.push("--bin", bindgen);
  if (target) flags.push("--target", target);
  const messages = await step(profile === "dev" ? "building weir" : "building weir, optimised", (pulse) =>
    cargoBuild(flags, {
      pulse,
      log: "native-build",
      // Where the C library is another one than the system's, it has a compiler of its own.
      env: target?.endsWith("-musl") ? { TARGET_CC: "musl-gcc" } : {},
      ...(target && {
        remedy: `correct what the compiler reports above; it needs: rustup target add ${target}, and for musl the musl-tools`,
      }),
    }),
  );
  const built = executableIn(messages);
  // A copy, so that a later build does not replace a running binary.
  await mkdir(join(state, "bin"), { recursive: true });
  const beside = `${weirBinary}.${process.pid}`;
  await copyFile(built, beside, constants.COPYFILE_FICLONE);
  await chmod(beside, 0o755);
  await rename(beside, weirBinary);
  return weirBinary;
}
