import { existsSync } from "node:fs";
import { chmod, cp, mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { aptUpdate, candidate, hasApt } from "./apt.ts";
import { cached, makeCached } from "./cache.ts";
import { cargoEnvironment } from "./cargo.ts";
import { Failure } from "./failure.ts";
import { attempt, run } from "./process.ts";
import { type Pulse, step } from "./progress.ts";

// Increase when the layout of the folder changes.
const layout = 1;
const nameOf = (version: string): string => `rust-wasm-debian-${version}-${layout}`;

/** The oldest compiler that builds the `worker` crate. */
const oldestMinor = 91;

const otherwise =
  "make `rustup target add wasm32-unknown-unknown` work on this machine (it needs the network), then run this again";

let known: string | undefined;

export function debianRustIsCached(): boolean {
  return known !== undefined && cached(nameOf(known)) !== undefined;
}

/** Whether Debian has a suitable compiler, according to this machine's package lists. */
export async function hasDebianRust(): Promise<boolean> {
  if (process.platform !== "linux" || !(await hasApt())) return false;
  known = usable(await candidate("rustc-web"));
  return known !== undefined;
}

function usable(version: string | undefined): string | undefined {
  const [major = 0, minor = 0] = (version ?? "").split(".").map(Number);
  return version && (major > 1 || (major === 1 && minor >= oldestMinor))
    ? version.replace(/[^\w.+-]/g, "_")
    : undefined;
}

/**
 * A folder with a `rustc` and `cargo` for wasm, from Debian's packages. The packages are unpacked and not installed,
 * because they would replace the user's own Rust.
 */
export async function debianRust(): Promise<string> {
  if (process.platform !== "linux" || !(await hasApt())) {
    throw new Failure(
      "the Rust standard library for wasm is missing, and apt is not here to fetch Debian's",
      otherwise,
    );
  }
  if (!(await hasDebianRust())) {
    await step("updating apt's package lists", aptUpdate);
    if (!(await hasDebianRust())) {
      throw new Failure(`Debian's package rustc-web is not available in a version >= 1.${oldestMinor}`, otherwise);
    }
  }
  const name = nameOf(known ?? "");
  const folder = cached(name) ?? (await makeCached(name, make));
  return join(folder, "bin");
}

async function make(folder: string): Promise<void> {
  const multiarch = (
    await run("dpkg-architecture", ["-qDEB_HOST_MULTIARCH"]).catch(() => multiarchOf(process.arch))
  ).trim();
  await step("fetching Debian's Rust compiler for wasm (about 140 MB)", (pulse) => fetchPackages(folder, pulse));
  const linker = (await readdir(join(folder, "usr", "bin"))).find((file) => /^wasm-ld-\d+$/.test(file));
  if (!linker) throw new Failure("Debian's lld package has no wasm-ld", otherwise);
  await writeWrappers(folder, multiarch, linker);
  await step("building Rust's standard library for wasm (about a minute)", (pulse) =>
    buildStandardLibrary(folder, pulse),
  );
}

function multiarchOf(arch: string): string {
  return arch === "arm64" ? "aarch64-linux-gnu" : "x86_64-linux-gnu";
}

async function fetchPackages(folder: string, pulse: Pulse): Promise<void> {
  const dependencies = async (name: string): Promise<string[]> =>
    [
      ...(
        await run("apt-cache", [
          "depends",
          "--recurse",
          "--no-recommends",
          "--no-suggests",
          "--no-conflicts",
          "--no-breaks",
          "--no-replaces",
          "--no-enhances",
          name,
        ])
      ).matchAll(/^(\S+)$/gm),
    ].map((match) => match[1] ?? "");
  // Only apt knows the matching versions of the library and of LLVM.
  const needed = (await dependencies("rustc-web")).filter((name) =>
    /^(rustc-web|libstd-rust-web-.*|libllvm\d+)$/.test(name),
  );
  const llvm = needed.map((name) => /^libllvm(\d+)$/.exec(name)?.[1]).find((version) => version);
  const packages = [...new Set([...needed, "rust-web-src", `lld-${llvm}`])];
  const download = join(folder, "packages");
  await mkdir(download);
  const fetch = () => attempt("apt-get", ["download", ...packages], { cwd: download, pulse, log: "apt" });
  let outcome = await fetch();
  if (outcome.code !== 0) {
    // The package lists may be out of date.
    await aptUpdate(pulse);
    outcome = await fetch();
  }
  if (outcome.code !== 0) {
    throw new Failure(
      `apt could not fetch ${packages.join(" ")}: ${outcome.output.trim().split("\n").at(-1)}`,
      `check the network, or ${otherwise}`,
    );
  }
  for (const file of await readdir(download)) {
    pulse.latest = `unpacking ${file}`;
    await run("dpkg", ["-x", join(download, file), folder]);
  }
  await rm(download, { recursive: true });
}

/** Programs on the PATH through which cargo finds the unpacked compiler. */
async function writeWrappers(folder: string, multiarch: string, linker: string): Promise<void> {
  const bin = join(folder, "bin");
  await mkdir(bin);
  const wrappers: Record<string, string> = {
    rustc: `#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/../usr/lib/${multiarch}\${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/../usr/bin/rustc" "$@"
`,
    // The user's own cargo with this compiler, found on the PATH without this folder. Otherwise it would call itself.
    cargo: `#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
PATH=$(printf %s "$PATH" | tr ':' '\\n' | grep -vxF "$here" | paste -sd: -)
cargo=$(command -v cargo) || { echo "cargo is not on the PATH" >&2; exit 127; }
PATH="$here:$PATH" RUSTC="$here/rustc" CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$here/../usr/bin/${linker}" exec "$cargo" "$@"
`,
  };
  for (const [name, text] of Object.entries(wrappers)) {
    await writeFile(join(bin, name), text);
    await chmod(join(bin, name), 0o755);
  }
}

async function buildStandardLibrary(folder: string, pulse: Pulse): Promise<void> {
  const empty = join(folder, "empty");
  await mkdir(join(empty, "src"), { recursive: true });
  await writeFile(
    join(empty, "Cargo.toml"),
    '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n',
  );
  await writeFile(join(empty, "src", "lib.rs"), "");
  const bin = join(folder, "bin");
  await run(
    join(bin, "cargo"),
    ["build", "--release", "--target", "wasm32-unknown-unknown", "-Zbuild-std=std,panic_abort"],
    {
      cwd: empty,
      pulse,
      log: "wasm-std",
      env: await cargoEnvironment({
        PATH: `${bin}:${process.env.PATH}`,
        // Building std is an unstable option, and Debian's compiler is a stable one.
        RUSTC_BOOTSTRAP: "1",
        // Link-time optimisation needs the library's bitcode.
        RUSTFLAGS: "-Cembed-bitcode=yes",
        CARGO_TARGET_DIR: join(empty, "target"),
        CARGO_BUILD_BUILD_DIR: join(empty, "target"),
      }),
      remedy: otherwise,
    },
  );
  const library = join(folder, "usr", "lib", "rustlib", "wasm32-unknown-unknown", "lib");
  await mkdir(library, { recursive: true });
  const built = join(empty, "target", "wasm32-unknown-unknown", "release", "deps");
  for (const file of await readdir(built)) {
    if (file.endsWith(".rlib") && !file.startsWith("libempty")) await cp(join(built, file), join(library, file));
  }
  // This is most of the folder's size, and no longer needed.
  await rm(empty, { recursive: true });
  for (const sources of [join(folder, "usr", "src"), join(folder, "usr", "share")]) {
    if (existsSync(sources)) await rm(sources, { recursive: true });
  }
}
