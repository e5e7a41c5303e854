import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { before, describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt, run } from "../../scripts/lib/process.ts";
import { pythonWith } from "../../scripts/lib/python.ts";
import { workspaceVersion } from "../../scripts/lib/release/version.ts";
import { required } from "../harness/lifetime.ts";

interface Container {
  args: string[];
  env?: { name: string; value: string }[];
  envFrom: { secretRef: { name: string } }[];
  image: string;
  ports?: { name: string; containerPort: number }[];
  livenessProbe?: { httpGet: { path: string; port: string } };
  readinessProbe?: { httpGet: { path: string; port: string } };
  resources?: { limits?: Record<string, string>; requests?: Record<string, string> };
}

interface Resource {
  kind: string;
  metadata: { name: string };
  spec: {
    template: {
      metadata: { labels: Record<string, string> };
      spec: {
        terminationGracePeriodSeconds?: number;
        topologySpreadConstraints?: { topologyKey: string; labelSelector: { matchLabels: Record<string, string> } }[];
        containers: [Container];
      };
    };
  };
}

function skipReason(): string | false {
  for (const [program, ...args] of [
    ["kubectl", "version", "--client"],
    ["python3", "-m", "venv", "--help"],
  ] as [string, ...string[]][])
    try {
      execFileSync(program, args, { stdio: "ignore" });
    } catch {
      return `needs ${program}`;
    }
  return false;
}

/** Seconds of a duration such as "30s". */
function seconds(duration: string): number {
  assert.match(duration, /^\d+s$/);
  return Number.parseInt(duration, 10);
}

describe("deploy/kubernetes", { skip: skipReason() }, () => {
  let manifest: string;
  let deployments: Resource[];
  /** The Python that has the validator, with the schemas of Kubernetes. */
  let python: string;

  before(async () => {
    const folder = mkdtempSync(join(required("WEIR_TEST_FOLDER"), "kubernetes-"));
    cpSync(join(root, "deploy", "kubernetes"), folder, { recursive: true });
    cpSync(join(root, "deploy", "weir.toml"), join(folder, "weir.toml"));
    manifest = join(folder, "manifest.yaml");
    writeFileSync(manifest, await run("kubectl", ["kustomize", folder]));
    python = await pythonWith("kubernetes-validate", "1.37.0", "the validator of Kubernetes files");
    const script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    const resources = JSON.parse(await run(python, ["-c", script, manifest])) as Resource[];
    deployments = resources.filter(({ kind }) => kind === "Deployment");
  });

  it("is valid for Kubernetes, and an unknown member is not", async () => {
    const validate = (file: string) => attempt(python, ["-m", "kubernetes_validate", "--strict", "-k", "1.37.0", file]);
    const valid = await validate(manifest);
    assert.equal(valid.code, 0, valid.output);
    assert.match(valid.output, /deployment\/weir-serve against version 1\.37/);
    const wrong = `${manifest}.wrong`;
    writeFileSync(wrong, readFileSync(manifest, "utf8").replace("readinessProbe:", "readynessProbe:"));
    assert.equal((await validate(wrong)).code, 1);
  });

  it("gives every process probes, limits and this version's image", async () => {
    const version = await workspaceVersion();
    assert.deepEqual(deployments.map(({ metadata }) => metadata.name).sort(), [
      "weir-schedule",
      "weir-serve",
      "weir-work",
    ]);
    for (const { metadata, spec } of deployments) {
      const [container] = spec.template.spec.containers;
      assert.deepEqual([`weir-${container.args[0]}`, container.args.length], [metadata.name, 1]);
      assert.equal(container.image, `ghcr.io/weir-queue/weir:v${version}`);
      assert.deepEqual(container.livenessProbe?.httpGet, { path: "/healthz", port: "http" });
      assert.deepEqual(container.readinessProbe?.httpGet, { path: "/readyz", port: "http" });
      const port = container.env?.find(({ name }) => /^WEIR_(ORIGIN|METRICS)_PORT$/.test(name))?.value;
      assert.equal(port, String(container.ports?.[0]?.containerPort), metadata.name);
      assert.ok(container.resources?.limits?.memory && container.resources.requests?.cpu, metadata.name);
    }
  });

  it("spreads the pods of each process over the nodes, and lets Prometheus scrape them all", async () => {
    const monitor = readFileSync(join(root, "deploy", "kubernetes", "podmonitor.yaml"), "utf8");
    for (const { metadata, spec } of deployments) {
      const { labels } = spec.template.metadata;
      const [spread] = spec.template.spec.topologySpreadConstraints ?? [];
      assert.deepEqual(spread?.labelSelector.matchLabels, labels, metadata.name);
      assert.equal(spread?.topologyKey, "kubernetes.io/hostname");
      const component = labels["app.kubernetes.io/component"] ?? "";
      assert.match(monitor, new RegExp(`values: \\[.*\\b${component}\\b.*\\]`));
      assert.equal(spec.template.spec.containers[0].ports?.[0]?.name, "http", "the port of the monitor");
    }
  });

  it("gives EDGE_SECRET to the API alone", () => {
    for (const { metadata, spec } of deployments) {
      const secrets = spec.template.spec.containers[0].envFrom.map(({ secretRef }) => secretRef.name);
      assert.deepEqual(secrets, metadata.name === "weir-serve" ? ["weir", "weir-serve"] : ["weir"]);
    }
  });

  it("waits longer for a pod than its jobs may take to drain", () => {
    const settings = readFileSync(join(root, "docs", "reference", "settings.md"), "utf8");
    const drain = /^\| `WEIR_DRAIN_TIMEOUT` \| `(\w+)`/m.exec(settings)?.[1] ?? "";
    for (const { metadata, spec } of deployments) {
      const { containers, terminationGracePeriodSeconds = 30 } = spec.template.spec;
      const delay = containers[0].env?.find(({ name }) => name === "WEIR_STOP_DELAY")?.value ?? "0s";
      const needed = seconds(delay) + seconds(drain) + 20;
      assert.ok(terminationGracePeriodSeconds >= needed, `${metadata.name}: ${needed} s`);
    }
  });
});
