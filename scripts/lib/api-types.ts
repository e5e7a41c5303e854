import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { root } from "./paths.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";

const document = join(root, "native", "tests", "snapshots", "openapi.json");
const types = join(root, "www", "src", "generated", "api.d.ts");
const generator = join(root, "scripts", "openapi");

/** Writes the API's types, for the page and the tests, from its OpenAPI document. */
export async function generateApiTypes(): Promise<void> {
  if (!existsSync(join(generator, "node_modules", ".package-lock.json"))) {
    await step("installing the generator of types", (pulse) =>
      run("npm", ["ci", "--no-audit", "--no-fund"], { cwd: generator, pulse, remedy: "check the network" }),
    );
  }
  const program = join(generator, "node_modules", "openapi-typescript", "bin", "cli.js");
  const text = await run(process.execPath, [program, document, "--root-types", "--root-types-no-schema-prefix"]);
  await mkdir(dirname(types), { recursive: true });
  await writeFile(types, `${await header(text)}${text}`);
}

/** Whether the types match the document, and were not edited by hand. */
export async function apiTypesAreFresh(): Promise<boolean> {
  const found = await readFile(types, "utf8").catch(() => "");
  const text = found.slice(found.indexOf("\n") + 1);
  return found === `${await header(text)}${text}`;
}

/** The sources' and the result's hashes, so that checking them needs no generator. */
async function header(text: string): Promise<string> {
  const hash = (data: string | Buffer): string => createHash("sha256").update(data).digest("hex").slice(0, 16);
  return `// From openapi.json ${hash(await readFile(document))}; content ${hash(text)}. Made by: npm run generate\n`;
}
