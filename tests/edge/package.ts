import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import {
  convertV4MiniflareOptions,
  Miniflare,
  type V4MiniflareOptions,
  type V4WorkerOptions as WorkerOptions,
} from "miniflare";
import { wrangler, wranglerEnvironment } from "../../scripts/lib/edge-server.ts";
import { nodeBin, root } from "../../scripts/lib/paths.ts";
import { run } from "../../scripts/lib/process.ts";
import { temporaryFolder } from "../../scripts/lib/temporary-folder.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { until } from "../harness/until.ts";

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
export async function checkTypes(project: string, file: string, lib = "es2022,webworker"): Promise<void> {
  const flags = ["--noEmit", "--strict", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"];
  await run(join(nodeBin, "tsc"), [...flags, "--lib", lib, "--types", "", file], {
    cwd: project,
  });
}

/** The same with the types that `wrangler types` generates for the project's configuration. */
export async function checkWranglerTypes(project: string, file: string): Promise<void> {
  await run(process.execPath, [wrangler, "types", "types.d.ts"], { cwd: project, env: wranglerEnvironment() });
  const whole = join(project, "whole.ts");
  writeFileSync(whole, `/// <reference path="./types.d.ts" />\nimport "./${file.replace(/\.ts$/, "")}";\n`);
  await checkTypes(project, whole, "es2022");
}

/** A Worker of a project, in workerd. */
export interface Project {
  url: string;
  miniflare: Miniflare;
  /** The size of its modules, each compressed as by `gzip -9`, in KiB. */
  gzipKib: number;
  /** The lines of its log that contain this text, once there is one. */
  logged(text: string): Promise<string[]>;
}

/** Starts a Worker in a new project, with the package and Hono installed. `changes` are to its bindings and dates. */
export async function startProject(
  lifetime: Lifetime,
  edge: EdgePackage,
  name: string,
  source: string,
  changes: Partial<WorkerOptions> = {},
): Promise<Project> {
  const project = edge.install(name, ["hono"]);
  writeFileSync(join(project, "package.json"), '{ "type": "module" }');
  writeFileSync(join(project, "index.ts"), source);
  await checkTypes(project, "index.ts");
  const wasm = ["index_bg.wasm", "limit_bg.wasm"];
  const { outputFiles } = await build({
    entryPoints: [join(project, "index.ts")],
    bundle: true,
    format: "esm",
    write: false,
    external: ["cloudflare:*", ...wasm.map((name) => `./${name}`)],
  });
  const script = outputFiles[0]?.text ?? "";
  const used = wasm
    .filter((name) => script.includes(name))
    .map((name) => ({ name, contents: readFileSync(join(project, "node_modules", "weir-edge", name)) }));
  const logs: string[] = [];
  const settings = {
    host: "127.0.0.1",
    port: 0,
    cf: false,
    handleStructuredLogs: ({ message }: { message: string }) => logs.push(message),
    workers: [
      {
        name,
        compatibilityDate: "2026-09-01",
        modules: [
          { type: "ESModule", path: "index.js", contents: script },
          ...used.map(({ name, contents }) => ({ type: "CompiledWasm", path: name, contents })),
        ],
        durableObjects: { ADDRESS_COUNTERS: { className: "AddressCounter", useSQLite: true } },
        ...changes,
        bindings: { WEIR_COUNTER_TIMEOUT_MS: "20000", ...changes.bindings },
      },
    ],
  } as V4MiniflareOptions;
  const miniflare = new Miniflare(convertV4MiniflareOptions(settings));
  whenOver(lifetime, () => miniflare.dispose());
  return {
    url: (await miniflare.ready).href.replace(/\/$/, ""),
    miniflare,
    gzipKib: [script, ...used.map(({ contents }) => contents)].reduce(
      (sum, bytes) => sum + gzipSync(bytes, { level: 9 }).length / 1024,
      0,
    ),
    logged: (text) =>
      until(`a line with "${text}"`, () => {
        const found = logs.filter((line) => line.includes(text));
        return found.length > 0 && found;
      }),
  };
}

/** The options of a request with this client address. */
export const from = (address: string, headers: Record<string, string> = {}): RequestInit => ({
  headers: { "CF-Connecting-IP": address, ...headers },
});
