import { chmod, constants, copyFile, mkdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { requireCargo } from "./cargo.ts";
import { cargoBuild, executableIn } from "./cargo-build.ts";
import { state } from "./paths.ts";
import { step } from "./progress.ts";

/** Converts the compiled edge to a module for the edge's runtime. */
export const bindgen = "weir-bindgen";

type Profile = "dev" | "native";

/**
 * Builds `weir` with the handlers of examples/specvital, with cargo's development profile or the optimised one. The
 * services of weir.toml need them.
 */
export async function buildNative(profile: Profile = "dev"): Promise<string> {
  const [weir = ""] = await build(["specvital"], profile);
  return weir;
}

/** Builds the released, optimised binary `weir` for a target. */
export async function buildWeir(target: string): Promise<string> {
  const [weir = ""] = await build(["weir"], "native", target);
  return weir;
}

/** Builds the optimised benchmarks and `weir` for this machine. */
export async function buildBench(): Promise<{ bench: string; weir: string }> {
  const [weir = "", bench = ""] = await build(["weir", "weir-bench"], "native");
  return { bench, weir };
}

/** The package of each program that is built without the rest of the workspace, and its name in .weir/bin. */
const packages = {
  weir: { package: "weir-native", name: "weir" },
  specvital: { package: "weir-example-specvital", name: "weir" },
  "weir-bench": { package: "weir-bench", name: "weir-bench" },
};

type Program = keyof typeof packages;

async function build(programs: Program[], profile: Profile, target?: string): Promise<string[]> {
  await requireCargo();
  // The development build has the features of the whole workspace, like `npm test`, so that the two share the
  // dependencies. Measured and released builds do without the others.
  const chosen =
    profile === "dev" ? ["--workspace"] : programs.flatMap((program) => ["--package", packages[program].package]);
  const flags = [...chosen, ...programs.flatMap((program) => ["--bin", program]), "--profile", profile];
  // Building the edge's build tool at the same time costs almost nothing, because the last steps leave cores idle.
  if (profile === "dev") flags.push("--bin", bindgen);
  if (target) flags.push("--target", target);
  const title = `building ${programs.map((program) => packages[program].name).join(" and ")}${profile === "dev" ? "" : ", optimised"}`;
  const messages = await step(title, (pulse) =>
    cargoBuild(flags, {
      pulse,
      log: "native-build",
      // If the C library is not the system's, it has its own compiler.
      env: target?.endsWith("-musl") ? { TARGET_CC: "musl-gcc" } : {},
      ...(target && {
        remedy: `correct what the compiler reports above; it needs: rustup target add ${target}, and for musl the musl-tools`,
      }),
    }),
  );
  const suffix = [...(profile === "dev" ? [] : [profile]), ...(target ? [target] : [])];
  await mkdir(join(state, "bin"), { recursive: true });
  return Promise.all(
    programs.map((program) => copied(executableIn(messages, program), [packages[program].name, ...suffix].join("-"))),
  );
}

/** A copy, so that a later build does not replace a running binary. */
async function copied(built: string, name: string): Promise<string> {
  const binary = join(state, "bin", name);
  const beside = `${binary}.${process.pid}`;
  await copyFile(built, beside, constants.COPYFILE_FICLONE);
  await chmod(beside, 0o755);
  await rename(beside, binary);
  return binary;
}
