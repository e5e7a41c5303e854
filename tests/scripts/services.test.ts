import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";
import { developmentServices } from "../../scripts/lib/services.ts";
import { required } from "../harness/lifetime.ts";

const weir = required("WEIR_TEST_BINARY");
const env = { DATABASE_URL: "postgres://weir@127.0.0.1:1/weir", WEIR_ENV: "development" };
const shipped = readFileSync(join(root, "weir.toml"), "utf8");

/** A weir.toml with these contents, the development services created from it, and the output of weir. */
async function started(text: string): Promise<{ file: string; services: string; output: string }> {
  const folder = mkdtempSync(join(required("WEIR_TEST_FOLDER"), "services-"));
  const file = join(folder, "weir.toml");
  writeFileSync(file, text);
  const services = await developmentServices(weir, env, folder, file);
  const { output } = await attempt(weir, ["status"], { env: { ...env, WEIR_CONFIG: services } });
  return { file, services, output };
}

test("the development services include the picture's service", async () => {
  const { services, output } = await started(shipped);
  assert.match(readFileSync(services, "utf8"), /^name = "demo"$/m);
  assert.match(output, /cannot be used: Connection refused/);
});

test("an error in weir.toml is reported with its name and line", async () => {
  const { file, output } = await started(shipped.replace('unit = "analyses"', "unit = 3"));
  const line = shipped.split("\n").indexOf('unit = "analyses"') + 1;
  assert.ok(output.includes(`- ${file}, line ${line}, meter "analysis": unit: `), output);
});

test("a weir.toml without the picture's service is valid", async () => {
  const { output } = await started(
    shipped
      .replaceAll(/^name = "analysis"$/gm, 'name = "reading"')
      .replaceAll('event_type = "analysis"', 'event_type = "reading"')
      .replaceAll(/\banalysis = (?=\d)/g, "reading = "),
  );
  assert.match(output, /cannot be used: Connection refused/);
});
