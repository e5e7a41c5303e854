import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { cargoInstalled } from "../cargo-tools.ts";
import { packagesInPage } from "../page.ts";
import { root } from "../paths.ts";
import { run } from "../process.ts";

const crates = [
  { of: "weir", folder: "native", target: "x86_64-unknown-linux-musl" },
  { of: "weir-edge", folder: "", target: "wasm32-unknown-unknown" },
];

/** Writes the components of the binary, the edge and the page, in CycloneDX's format. */
export async function writeBills(version: string, output: string): Promise<void> {
  const cyclonedx = await cargoInstalled({ crate: "cargo-cyclonedx", version: "0.5.9", bin: "cargo-cyclonedx" });
  // A bill has the time of the commit, so that the same sources produce the same bill.
  const seconds = (await run("git", ["log", "-1", "--format=%ct"])).trim();
  const env = { ...process.env, SOURCE_DATE_EPOCH: seconds };
  const name = `bill.${process.pid}`;
  const args = [
    "cyclonedx",
    "--format",
    "json",
    "--spec-version",
    "1.5",
    "--no-build-deps",
    "--override-filename",
    name,
  ];
  try {
    for (const { of, folder, target } of crates) {
      const manifest = join(root, folder, "Cargo.toml");
      await run(cyclonedx, [...args, "--target", target, "--manifest-path", manifest], { env });
      const bill = await readFile(join(root, folder, `${name}.json`), "utf8");
      await writeFile(join(output, `${of}-${version}.cdx.json`), bill.replaceAll(`file://${root}`, "file:///weir"));
    }
  } finally {
    // cargo writes one next to each manifest of the workspace.
    for (const folder of [
      "",
      "bench",
      "entry",
      "ledger",
      "native",
      "policy",
      "examples/rust-worker",
      "scripts/bindgen",
    ])
      await rm(join(root, folder, `${name}.json`), { force: true });
  }

  await writeFile(join(output, `weir-page-${version}.cdx.json`), await billOfPage(seconds));
}

interface Bill {
  serialNumber?: string;
  metadata: { timestamp: string; component: { name: string; "bom-ref": string } };
  components: { name: string; "bom-ref": string }[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

/** The packages in the page, from npm's list, which also has all tools. */
async function billOfPage(seconds: string): Promise<string> {
  const bundled = await packagesInPage();
  const bill = JSON.parse(await run("npm", ["sbom", "--package-lock-only", "--sbom-format=cyclonedx"])) as Bill;
  delete bill.serialNumber;
  bill.metadata.timestamp = new Date(Number(seconds) * 1000).toISOString();
  // npm uses the folder's name.
  bill.metadata.component.name = "weir-page";
  bill.components = bill.components.filter(({ name }) => bundled.has(name));
  const refs = new Set([bill.metadata.component, ...bill.components].map((component) => component["bom-ref"]));
  bill.dependencies = bill.dependencies
    .filter(({ ref }) => refs.has(ref))
    .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((other) => refs.has(other)) }));
  return `${JSON.stringify(bill, null, 2)}\n`;
}
