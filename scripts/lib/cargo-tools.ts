import { join } from "node:path";
import { cached } from "./cache.ts";
import { cargoEnvironment } from "./cargo.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

/** A program from crates.io. */
export interface CargoTool {
  crate: string;
  version: string;
  bin: string;
  /** Additional flags of `cargo install`. */
  flags?: string[];
}

/** The path of a program that is built from source once per user. */
export async function cargoInstalled(tool: CargoTool): Promise<string> {
  const name = `${tool.crate}-${tool.version}`;
  const folder = await cached(name, (workshop) => install(tool, name, workshop));
  return join(folder, "bin", tool.bin);
}

async function install(tool: CargoTool, name: string, folder: string): Promise<void> {
  const target = join(folder, "target");
  const flags = ["--locked", "--debug", "--root", folder, "--bin", tool.bin, ...(tool.flags ?? [])];
  await step(`building ${name} (about a minute)`, async (pulse) => {
    // A debug build takes a third of the time, and the tool runs for a second at a time.
    await run("cargo", ["install", ...flags, `${tool.crate}@${tool.version}`], {
      pulse,
      log: name,
      env: cargoEnvironment({
        CARGO_TARGET_DIR: target,
        CARGO_BUILD_BUILD_DIR: target,
        CARGO_PROFILE_DEV_DEBUG: "0",
      }),
      remedy: "check the network (cargo must reach its registry) and run the same command again",
    });
    await run("rm", ["-rf", target]);
  });
}
