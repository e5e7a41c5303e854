import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt, Service } from "../../scripts/lib/process.ts";
import { untilOk } from "../../scripts/lib/ready.ts";
import { freshDatabase } from "../harness/database.ts";
import { freshSecrets } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { startStack } from "../harness/stack.ts";
import { until } from "../harness/until.ts";
import { weir, weirEnvironment } from "../harness/weir.ts";

const readme = readFileSync(join(root, "README.md"), "utf8");
const binary = required("WEIR_TEST_BINARY");
const stack = await startStack({ after });

/** The code blocks of a language below a heading. */
function blocksBelow(heading: string, language: string): string[] {
  const section = readme.split(/^## /m).find((text) => text.startsWith(`${heading}\n`));
  assert.ok(section, `README.md has no section "${heading}"`);
  return [...section.matchAll(/^```(\w+)\n(.*?)^```$/gms)].flatMap(([, of, text = ""]) =>
    of === language ? text : [],
  );
}

interface Step {
  command: string;
  /** The expected output. "…" stands for any text. */
  prints: string;
}

function stepsIn(block: string): Step[] {
  return block
    .split(/^\$ /m)
    .slice(1)
    .map((text) => {
      const [, command = "", prints = ""] = /^((?:.*\\\n)*.*\n)([\s\S]*)$/.exec(text) ?? [];
      return { command: command.trim(), prints: prints.trim() };
    });
}

/** Matches output without white space. */
function pattern(prints: string): RegExp {
  const parts = prints.split("…").map((part) => RegExp.escape(part.replaceAll(/\s+/g, "")));
  return new RegExp(`^${parts.join(".*")}$`, "s");
}

describe("README.md", () => {
  it("quotes a plan of weir.toml in eight lines", () => {
    const [quoted = ""] = blocksBelow("At a glance", "toml");
    assert.equal(quoted.trim().split("\n").length, 8);
    const plan = quoted.slice(quoted.indexOf("[[plan]]")).trim();
    assert.ok(
      readFileSync(join(root, "weir.toml"), "utf8").includes(`\n${plan}\n\n`),
      `weir.toml does not have:\n${plan}`,
    );
  });

  it("shows what its first commands print", async () => {
    const steps = blocksBelow("At a glance", "console").flatMap(stepsIn);
    assert.deepEqual(
      steps.map(({ command }) => command.split(" ")[0]),
      ["TOKEN=$(npm", "curl", "curl", "npm"],
    );
    const env = { ...stack.origin.env };
    for (const { command, prints } of steps) {
      const script = command
        .replaceAll("npm run -s weir --", `"${binary}"`)
        .replaceAll("http://127.0.0.1:8787", stack.edge.url);
      if (script.startsWith("TOKEN=")) {
        env.TOKEN = (await attempt("bash", ["-euc", `${script}; printf %s "$TOKEN"`], { env })).stdout;
        continue;
      }
      let printed = "";
      const ranAsShown = async (): Promise<boolean> => {
        printed = (await attempt("bash", ["-euc", script], { env })).stdout;
        return pattern(prints).test(printed.replaceAll(/\s+/g, ""));
      };
      // A submission is sent once. The other commands may have to wait for its job.
      const isSubmission = command.includes(" -d ");
      const isAsShown = isSubmission ? ranAsShown() : until("the output in README.md", ranAsShown);
      assert.ok(await isAsShown.catch(() => false), `${command}\n\nREADME.md:\n${prints}\n\nprinted:\n${printed}`);
    }
  });

  it("starts every process of production", async (t) => {
    const [block = ""] = blocksBelow("Run it in production", "sh");
    const commands = [...block.matchAll(/^weir (\w+)/gm)].map(([, name = ""]) => name);
    assert.deepEqual(commands, ["migrate", "serve", "work", "schedule"]);
    const database = await freshDatabase(t);
    const secrets = freshSecrets();
    for (const name of commands) {
      if (name === "migrate") {
        const ran = await weir([name], weirEnvironment(database, secrets));
        assert.equal(ran.code, 0, ran.stderr);
        continue;
      }
      const port = String(await freePort());
      const env = weirEnvironment(database, secrets, { WEIR_ORIGIN_PORT: port, WEIR_METRICS_PORT: port });
      const service = new Service(name, binary, [name], { env, grace: 10_000 });
      whenOver(t, () => service.stop());
      await untilOk(`http://127.0.0.1:${port}/readyz`, 30_000);
      await service.stop();
      assert.equal(await service.ended, "ended with code 0", service.recent.join("\n"));
    }
  });

  it("deploys the edge of the environment production, with the documented size", async () => {
    const [block = ""] = blocksBelow("Run it in production", "sh");
    const command = /^npm run deploy -- (.+?)\s+#/m.exec(block)?.[1] ?? "";
    assert.match(command, /^--env production --var ORIGIN_URL:https:/);
    const deploy = join(root, "scripts", "deploy.ts");
    const { code, output } = await attempt(process.execPath, [deploy, ...command.split(" "), "--dry-run"]);
    assert.equal(code, 0, output);
    assert.match(output, /DEVELOPMENT \("off"\)/);
    const sizes = /Total Upload: ([\d.]+) KiB \/ gzip: ([\d.]+) KiB/.exec(output);
    const documented = /bundle is (\d+) KiB, or (\d+) KiB compressed/.exec(readme);
    for (const part of [1, 2]) {
      const [size, claimed] = [Number(sizes?.[part]), Number(documented?.[part])];
      assert.ok(Math.abs(size - claimed) < size / 50, `README.md has ${claimed} KiB, the bundle ${size}`);
    }
  });
});
