import { spawn } from "node:child_process";
import { cargoEnvironment, requireCargo } from "./lib/cargo.ts";
import { root } from "./lib/places.ts";
import { stopGroup } from "./lib/process.ts";
import { atTheEnd, script } from "./lib/stopping.ts";

// By a script of its own only so that it shares what other builds have built.
await script(async () => {
  await requireCargo();
  const args = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
  const child = spawn("cargo", args, { cwd: root, env: cargoEnvironment(), stdio: ["ignore", "inherit", "inherit"], detached: true });
  atTheEnd(() => stopGroup(child, 2000));
  return await new Promise<number>((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => done(code ?? 1));
  });
});
