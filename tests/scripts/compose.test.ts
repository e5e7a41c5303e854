import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { before, describe, it } from "node:test";
import { wrangler, wranglerEnvironment } from "../../scripts/lib/edge-server.ts";
import { root } from "../../scripts/lib/paths.ts";
import { run, Service } from "../../scripts/lib/process.ts";
import { untilOk } from "../../scripts/lib/ready.ts";
import { packEdge } from "../../scripts/lib/release/edge.ts";
import { workspaceVersion } from "../../scripts/lib/release/version.ts";
import { freshDatabase } from "../harness/database.ts";
import { goProgram, skipWithoutGo } from "../harness/go.ts";
import { freshSecrets } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { showOnFailure } from "../harness/logs.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { weir } from "../harness/weir.ts";

interface Model {
  services: Record<
    string,
    { command: string[]; environment: Record<string, string>; image: string; stop_grace_period?: string }
  >;
  configs: Record<string, { content: string }>;
}

// No container runs here: the test starts the same commands with the same environment as processes of this machine.
describe("compose.yaml", { skip: skipWithoutGo() }, () => {
  let folder: string;
  let model: Model;
  const secrets = freshSecrets();
  const variables: Record<string, string> = {
    POSTGRES_PASSWORD: "password",
    EDGE_SECRET: secrets.edge,
    JWT_SECRET: secrets.jwt,
  };

  before(async () => {
    folder = await mkdtemp(join(required("WEIR_TEST_FOLDER"), "compose-"));
    variables.WEIR_ORIGIN_PORT = String(await freePort());
    variables.EDGE_PORT = String(await freePort());
    variables.HANDLER_PORT = String(await freePort());
    const text = readFileSync(join(root, "compose.yaml"), "utf8").replaceAll(
      /\$\{(\w+)(?::([-?])([^}]*))?\}/g,
      (_, name: string, kind: string | undefined, value: string) => {
        const set = variables[name] ?? (kind === "-" ? value : undefined);
        assert.ok(set !== undefined, `${name} is not set`);
        return set;
      },
    );
    const file = join(folder, "compose.yaml");
    writeFileSync(file, text);
    // Checks the file against the schema of Compose, and resolves anchors.
    const compose = await goProgram("github.com/compose-spec/compose-go/v2", "2.16.2", "cmd");
    model = JSON.parse(await run(compose, ["-format", "json", file])) as Model;
  });

  it("runs this version's image, and leaves time to drain", async () => {
    const version = await workspaceVersion();
    assert.equal(model.services.weir?.image, `ghcr.io/weir-queue/weir:v${version}`);
    assert.equal(model.services.weir.stop_grace_period, "60s");
  });

  it("completes a job with the packed edge, and shows the console", { timeout: 600_000 }, async (t) => {
    const database = await freshDatabase(t);
    const services = join(folder, "weir.toml");
    writeFileSync(services, model.configs.services?.content ?? "");
    const environment = {
      ...process.env,
      ...model.services.weir?.environment,
      DATABASE_URL: database.url,
      WEIR_CONFIG: services,
    };
    const [node, ...script] = model.services.handler?.command ?? [];
    assert.equal(node, "node");
    const handler = new Service("handler", process.execPath, script, {});
    whenOver(t, () => handler.stop());
    const migrated = await weir(model.services.migrate?.command ?? [], environment);
    assert.equal(migrated.code, 0, migrated.stderr);
    const command = model.services.weir?.command ?? [];
    const up = new Service("weir", required("WEIR_TEST_BINARY"), command, { env: environment, grace: 10_000 });
    showOnFailure("weir up", () => up.recent.join("\n"));
    whenOver(t, () => up.stop());
    const origin = `http://127.0.0.1:${variables.WEIR_ORIGIN_PORT}`;
    await untilOk(`${origin}/readyz`, 30_000);
    await untilOk(`${origin}/console`, 5000);

    await packEdge("v0.0.0", folder);
    await run("tar", ["-xzf", join(folder, "weir-edge-v0.0.0.tar.gz"), "-C", folder]);
    const file = join(folder, "edge.env");
    writeFileSync(file, model.configs.edge?.content ?? "");
    const args = model.services.edge?.command ?? [];
    const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
      devDependencies: Record<string, string>;
    };
    const images = readFileSync(join(root, "deploy", "compose.Containerfile"), "utf8");
    assert.match(images, new RegExp(`wrangler@${manifest.devDependencies.wrangler}\n`));
    const ours = args.map((arg) => arg.replace("/run/edge.env", file).replace("/tmp/edge", join(folder, "edge-state")));
    const inspector = `--inspector-port=${await freePort()}`;
    const edge = new Service("edge", process.execPath, [wrangler, ...ours, inspector], {
      cwd: join(folder, "weir-edge-v0.0.0"),
      env: wranglerEnvironment(),
      grace: 8000,
    });
    showOnFailure("the edge", () => edge.recent.join("\n"));
    whenOver(t, () => edge.stop());
    const page = `http://127.0.0.1:${variables.EDGE_PORT}`;
    await untilOk(page, 60_000);

    const given = await fetch(`${page}/api/dev/token`, { method: "POST", body: JSON.stringify({ plan: "pro" }) });
    assert.equal(given.status, 200, "the page signs you in with a plan");
    const token = await weir(["token", "--plan", "free"], environment);
    assert.equal(token.code, 0, token.stderr);
    const headers = { Authorization: `Bearer ${token.stdout.trim()}` };
    const body = JSON.stringify({ files: [{ path: "a_test.go", content: "func TestAdd(t *testing.T) {}" }] });
    const submitted = await fetch(`${page}/api/jobs/analysis`, { method: "POST", headers, body });
    assert.equal(submitted.status, 202, await submitted.clone().text());
    await until("the job to be done", async () => {
      const jobs = await fetch(`${page}/api/jobs`, { headers });
      const [job] = (await jobs.json()) as { status: string; output?: { count: number } }[];
      return job?.status === "completed";
    });
    // As the demonstration does.
    const flood = await fetch(`${page}/api/jobs/demo`, { method: "POST", headers, body: "{}" });
    assert.equal(flood.status, 202, await flood.clone().text());
    const shared = await fetch(`${page}/api/dev/shared-queue`, { method: "POST", headers, body: "{}" });
    assert.notEqual(shared.status, 404);
    await until("both jobs to be done", async () => {
      const jobs = (await (await fetch(`${page}/api/jobs`, { headers })).json()) as { status: string }[];
      return jobs.length === 2 && jobs.every(({ status }) => status === "completed");
    });
    const status = await weir(["status"], environment);
    assert.equal(status.code, 0, status.stderr);
  });
});
