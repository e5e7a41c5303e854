import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { unstable_readConfig as readConfig } from "wrangler";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";

describe("npm run deploy", () => {
  const deploy = async (...args: string[]): Promise<string> => {
    const { code, output } = await attempt(process.execPath, [join(root, "scripts", "deploy.ts"), ...args]);
    assert.equal(code, 1, output);
    return output;
  };

  it("refuses an origin that a deployed edge cannot reach", async () => {
    assert.match(await deploy(), /ORIGIN_URL in wrangler.toml is http:\/\/127.0.0.1:8080/);
    assert.match(await deploy("--env", "production"), /ORIGIN_URL of production in wrangler.toml is not set/);
  });

  it("finds every variable in every environment, without a warning", () => {
    const variables = (env?: string): string[] =>
      Object.keys(readConfig({ config: join(root, "wrangler.toml"), env }).vars).sort();
    for (const env of ["staging", "production"]) assert.deepEqual(variables(env), variables());
  });

  it("refuses a read limit that READ_LIMITER does not allow", async () => {
    const output = await deploy("--dry-run", "--var", "ANON_READ_LIMIT:500");
    assert.match(output, /ANON_READ_LIMIT is 500 a minute, but READ_LIMITER in wrangler.toml allows 120/);
  });
});
