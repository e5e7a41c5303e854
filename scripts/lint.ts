import { spawn } from "node:child_process";
import { cargoEnvironment, requireCargo } from "./lib/cargo.ts";
import { root } from "./lib/paths.ts";
import { stopGroup } from "./lib/process.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";

// By a script of its own only so that it shares what other builds have built.
await runMain(async () => {
  await requireCargo();
  const args = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
  const child = spawn("cargo", args, { cwd: root, env: await cargoEnvironment(), stdio: ["ignore", "inherit", "inherit"], detached: true });
  onExit(() => stopGroup(child, 2000));
  return await new Promise<number>((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => done(code ?? 1));
  });
});
