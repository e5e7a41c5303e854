import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { cargoEnvironment, requireCargo } from "./lib/cargo.ts";
import { cargoInstalled } from "./lib/cargo-tools.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { makeStateFolder, root, state } from "./lib/paths.ts";
import { Service } from "./lib/process.ts";

/** Pure code, and the tests that must fail when it changes. With some mutants, the model runs for minutes. */
const parts: Record<string, string[]> = {
  policy: ["--package", "weir-policy", "--timeout", "60"],
  ledger: [
    ...["--package", "weir-ledger", "--timeout", "120"],
    ...["--file", "ledger/src/settlement/changes.rs", "--file", "ledger/src/reservation/decide.rs"],
    ...["--", "--lib", "--", "--skip", "invariants_hold_in_every_order_of_events"],
  ],
};

/** `npm run mutants -- policy --file policy/src/grants.rs`: a part, and further arguments for cargo-mutants. */
await runMain(async () => {
  const [wanted, ...more] = process.argv.slice(2);
  if (wanted && !(wanted in parts))
    throw new Failure(
      `unknown part ${wanted}`,
      `use one of ${Object.keys(parts).join(", ")} as the first argument, or no argument`,
    );
  await requireCargo();
  makeStateFolder();
  const bin = await cargoInstalled({ crate: "cargo-mutants", version: "27.1.0", bin: "cargo-mutants" });
  const env = cargoEnvironment();
  // Each mutant is built in a copy of the repository. It must neither replace other builds nor wait for them.
  delete env.CARGO_TARGET_DIR;
  delete env.CARGO_BUILD_BUILD_DIR;
  let missed = 0;
  for (const [part, args] of Object.entries(parts)) {
    if (wanted && wanted !== part) continue;
    const output = join(state, "mutants", part);
    await mkdir(output, { recursive: true });
    const service = new Service("mutants", bin, ["mutants", "--no-shuffle", "--output", output, ...more, ...args], {
      cwd: root,
      env,
      onLine: (line) => console.log(line),
    });
    await service.ended;
    if (service.child.exitCode !== 0) missed++;
  }
  return missed > 0 ? 1 : 0;
});
