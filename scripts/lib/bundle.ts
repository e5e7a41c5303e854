import { type BuildOptions, type BuildResult, build, stop } from "esbuild";
import { Failure } from "./failure.ts";

/** Bundles modules for browsers or for the edge's runtime, in memory. */
export async function bundle(
  what: string,
  options: BuildOptions,
): Promise<BuildResult<{ metafile: true; write: false }>> {
  try {
    return await build({
      ...options,
      bundle: true,
      minify: true,
      format: "esm",
      target: "es2022",
      logLevel: "warning",
      metafile: true,
      write: false,
    });
  } catch {
    throw new Failure(`${what} could not be bundled`, "correct the errors above");
  } finally {
    // Otherwise, its helper process would live as long as this one.
    await stop();
  }
}
