import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { cargoEnvironment, requireCargo } from "./lib/cargo.ts";
import { cargoInstalled } from "./lib/cargo-tools.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { options } from "./lib/options.ts";
import { makeStateFolder, root, state } from "./lib/paths.ts";
import { attempt, run } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";

/** Arguments of libFuzzer for targets that need special ones. */
const limitsOf: Record<string, string[]> = {
  // 255 bytes is the longest valid key, so inputs must be longer.
  idempotency_keys: ["-max_len=600"],
  // A dictionary of member names, because random input would not contain them.
  services: ["-max_len=4096", `-dict=${join(root, "fuzz", "services.dict")}`],
};

/** Features of targets that need more dependencies. The other targets start before these are built. */
const features: Record<string, string> = { services: "native" };

await runMain(async () => {
  const { values, positionals } = options({
    options: { seconds: { type: "string", default: "60" } },
    allowPositionals: true,
  });
  const seconds = Number(values.seconds);
  if (!(seconds >= 1))
    throw new Failure(`--seconds must be a number, not ${values.seconds}`, "npm run fuzz -- --seconds 60");
  await requireCargo();
  makeStateFolder();
  const fuzz = join(root, "fuzz");
  const sources = await readdir(join(fuzz, "fuzz_targets"));
  const known = sources
    .filter((file) => file.endsWith(".rs") && file !== "signed.rs")
    .map((file) => file.replace(/\.rs$/, ""));
  const targets = positionals.length > 0 ? positionals : known;
  for (const target of targets)
    if (!known.includes(target)) throw new Failure(`unknown target ${target}`, `use one of ${known.join(", ")}`);

  const bin = await cargoInstalled({ crate: "cargo-fuzz", version: "0.13.2", bin: "cargo-fuzz" });
  // Without a sanitizer, because the code has no `unsafe`. Coverage alone works with stable Rust.
  const built = join(state, "fuzz", "target");
  const flags = ["--sanitizer", "none", "--fuzz-dir", fuzz, "--target-dir", built];
  const env = cargoEnvironment();
  const flagsOf = (target: string): string[] => {
    const feature = features[target];
    return feature ? [...flags, "--features", feature] : flags;
  };
  const remedy = "correct what the compiler reports above";
  const build = (what: string, args: string[]): Promise<string> =>
    step(`building ${what}`, (pulse) => run(bin, ["build", ...args], { pulse, env, log: "fuzz-build", remedy }));
  if (targets.some((target) => !features[target])) await build("the fuzz targets", flags);
  for (const target of targets) if (features[target]) await build(target, [...flagsOf(target), target]);
  const rows: string[] = [];
  let findings = 0;
  for (const target of targets) {
    // New inputs go to the first folder, which is not in git. The second has a few seeds by hand.
    const found = join(state, "fuzz", "corpus", target);
    const seeds = join(fuzz, "corpus", target);
    const artifacts = join(state, "fuzz", "artifacts", target);
    for (const folder of [found, seeds, artifacts]) await mkdir(folder, { recursive: true });
    const limits = [`-max_total_time=${seconds}`, "-timeout=5", "-print_final_stats=1", ...(limitsOf[target] ?? [])];
    const args = [target, found, seeds, "--", ...limits, `-artifact_prefix=${artifacts}/`];
    const ran = await step(`${target}, for ${seconds} s`, (pulse) =>
      attempt(bin, ["run", ...flagsOf(target), ...args], { pulse, env, log: `fuzz-${target}` }),
    );
    const executed = Number(/stat::number_of_executed_units:\s*(\d+)/.exec(ran.output)?.[1] ?? 0);
    if (ran.code !== 0) {
      findings++;
      console.log(ran.output.trimEnd().split("\n").slice(-30).join("\n"));
    }
    rows.push(`| ${target} | ${executed.toLocaleString("en")} | ${ran.code === 0 ? "none" : `see ${artifacts}`} |`);
  }
  console.log(["", "| target | executions | findings |", "|---|---|---|", ...rows].join("\n"));
  if (findings > 0) say("to run the findings again, copy them to .weir/fuzz/corpus and run: npm run fuzz");
  return findings > 0 ? 1 : 0;
});
