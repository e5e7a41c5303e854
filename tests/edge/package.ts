import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { nodeBin, root } from "../../scripts/lib/paths.ts";
import { run } from "../../scripts/lib/process.ts";
import { temporaryFolder } from "../../scripts/lib/temporary-folder.ts";

/** The package weir-edge, built and unpacked for the tests of this file. */
export interface EdgePackage {
  /** The name of the tarball. */
  tarball: string;
  /** Installs the package, and these packages of the repository, into the project of this name. Returns its folder. */
  install(project: string, others?: string[]): string;
}

export async function buildPackage(): Promise<EdgePackage> {
  const folder = temporaryFolder("weir-edge-package");
  const { version } = JSON.parse(readFileSync(join(root, "packages", "weir-edge", "package.json"), "utf8"));
  const tarball = `weir-edge-${version}.tgz`;
  await run(process.execPath, [join(root, "scripts", "packages.ts"), "edge", "--out", folder]);
  await run("tar", ["-xzf", join(folder, tarball), "-C", folder]);
  return {
    tarball,
    install(project, others = []) {
      const modules = join(folder, project, "node_modules");
      mkdirSync(modules, { recursive: true });
      cpSync(join(folder, "package"), join(modules, "weir-edge"), { recursive: true });
      for (const name of others) symlinkSync(join(root, "node_modules", name), join(modules, name));
      return join(folder, project);
    },
  };
}

/** Checks the types of a project's file, as an editor does. */
export async function checkTypes(project: string, file: string): Promise<void> {
  const flags = ["--noEmit", "--strict", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"];
  await run(join(nodeBin, "tsc"), [...flags, "--lib", "es2022,webworker", "--types", "", file], {
    cwd: project,
  });
}
