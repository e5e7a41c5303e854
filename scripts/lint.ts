import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { apiTypesAreFresh } from "./lib/api-types.ts";
import { cargoEnvironment, requireCargo } from "./lib/cargo.ts";
import { cargoInstalled } from "./lib/cargo-tools.ts";
import { Failure } from "./lib/failure.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { deadLinks, filesIn } from "./lib/links.ts";
import { unknownNames } from "./lib/named.ts";
import { options } from "./lib/options.ts";
import { nodeBin, root } from "./lib/paths.ts";
import { exitCodeOf, run, stopGroup } from "./lib/process.ts";
import { say, show } from "./lib/progress.ts";
import { pythonWith } from "./lib/python.ts";

interface Check {
  /** The remedy if the check fails. */
  remedy: string;
  run(): Promise<number>;
}

const checks: Record<string, Check> = {
  rustfmt: {
    remedy: "npm run format",
    run: () => check("cargo", ["fmt", "--all", "--check"]),
  },
  biome: {
    remedy: "npm run format, then fix the remaining errors by hand",
    run: () => check(join(nodeBin, "biome"), ["check", "--error-on-warnings", "."]),
  },
  "api-types": {
    remedy: "regenerate the API types: npm run generate",
    run: async () => ((await apiTypesAreFresh()) ? 0 : 1),
  },
  types: {
    remedy: "correct the types that tsc reports above",
    run: async () => {
      const folders = [".", "www", join("clients", "typescript")];
      // The benchmark installs its packages on its first run.
      if (existsSync(join(root, "bench", "edge", "node_modules"))) folders.push(join("bench", "edge"));
      let failed = 0;
      for (const folder of folders) failed += await check(join(nodeBin, "tsc"), ["--noEmit", "--project", folder]);
      return failed;
    },
  },
  links: {
    remedy: "correct the links and names above",
    run: async () => {
      const pages = filesIn(root, ".md");
      const faults = [...(await deadLinks(root, pages)), ...unknownNames(root, pages)];
      for (const fault of faults) show(fault);
      return faults.length;
    },
  },
  clippy: {
    remedy: "correct what clippy reports above",
    run: () => {
      const flags = ["--workspace", "--all-targets", "--locked"];
      // Clippy runs instead of the wrapper that separates clones. Cargo compares its arguments, so results of other
      // clones do not count.
      return check("cargo", ["clippy", ...flags, "--", "-D", "warnings", `-Cmetadata=${root}`]);
    },
  },
  doc: {
    remedy: "correct the doc comments above",
    run: () =>
      check("cargo", ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"], {
        RUSTDOCFLAGS: "-D warnings",
      }),
  },
  macos: {
    remedy: "give calls that only Linux has an alternative, or compile them for Linux only",
    run: async () => {
      const target = "aarch64-apple-darwin";
      const remedy = `install Rust by rustup, and check the network: rustup target add ${target}`;
      await run("rustup", ["target", "add", target], { remedy });
      const ZIG_PYTHON = await pythonWith("ziglang", "0.17.1", "a C compiler for macOS");
      const env = { ZIG_PYTHON, CC_aarch64_apple_darwin: join(root, "scripts", "lib", "zig-cc.sh") };
      return check("cargo", ["check", "--locked", "--target", target, "-p", "weir-native"], env);
    },
  },
  deny: {
    remedy: "avoid the dependency, or allow it in deny.toml and give the reason",
    run: async () => {
      const flags = ["--no-default-features"];
      const deny = await cargoInstalled({ crate: "cargo-deny", version: "0.20.2", bin: "cargo-deny", flags });
      const what = ["licenses", "bans", "sources"];
      return check(deny, ["--workspace", "--locked", "check", "--hide-inclusion-graph", ...what]);
    },
  },
};

/** Runs the checks from the command line, or all. A failed check does not stop the others. */
await runMain(async () => {
  const { positionals: names } = options({ allowPositionals: true });
  await requireCargo();
  const all = Object.keys(checks);
  const unknown = names.find((name) => !all.includes(name));
  if (unknown)
    throw new Failure(
      `unknown check "${unknown}"`,
      `use one or more of ${all.join(", ")}, or leave them out to run all`,
    );
  const failed: string[] = [];
  for (const [name, { run }] of Object.entries(checks)) {
    if (names.length > 0 && !names.includes(name)) continue;
    say(name);
    if ((await run()) !== 0) failed.push(name);
  }
  if (failed.length === 0) return 0;
  const remedies = failed.map((name) => `${name}: ${checks[name]?.remedy}`);
  throw new Failure(`${failed.join(", ")} failed`, remedies.join("; "));
});

async function check(file: string, args: string[], extra: NodeJS.ProcessEnv = {}): Promise<number> {
  const env = cargoEnvironment(extra);
  const child = spawn(file, args, { cwd: root, env, stdio: ["ignore", "inherit", "inherit"], detached: true });
  const forget = onExit(() => stopGroup(child, 2000));
  try {
    return await exitCodeOf(child);
  } finally {
    forget();
  }
}
