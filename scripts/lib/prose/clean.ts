/**
 * Files and folders without findings. `npm run lint -- prose` fails when one of them gets a finding. Add a path when
 * you have rewritten it; `npm run lint -- prose --all` lists the findings of the other files.
 */
export const cleanPaths: string[] = [
  "ARCHITECTURE.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "README.md",
  "SECURITY.md",
  "bench/edge/README.md",
  "bench/peers/README.md",
  "bench/src",
  "docs/README.md",
  "docs/adr",
  "docs/how-to/answer-later.md",
  "docs/how-to/any-language.md",
  "docs/how-to/back-up.md",
  "docs/how-to/beside.md",
  "docs/how-to/billing.md",
  "docs/how-to/catalogue.md",
  "docs/how-to/connect.md",
  "docs/how-to/follow-a-request.md",
  "docs/how-to/outages.md",
  "docs/how-to/read-the-status.md",
  "docs/how-to/river-clients.md",
  "docs/how-to/rotate-secrets.md",
  "docs/how-to/size.md",
  "docs/how-to/submit-from-rust.md",
  "docs/how-to/upgrade.md",
  "docs/how-to/webhooks.md",
  "docs/operations.md",
  "docs/peers.md",
  "docs/performance.md",
  "docs/proof.md",
  "docs/scale.md",
  "docs/threat-model.md",
  "docs/tutorial",
  "examples/billing/README.md",
  "examples/images/README.md",
  "ledger",
  "native/tests",
  "native/src/config",
  "native/src/handler",
  "native/src/outbound",
  "native/src/status/held_back.rs",
  "native/src/status/look.rs",
  "native/src/status/mod.rs",
  "native/src/status/overview.rs",
  "native/src/status/short.rs",
  "native/src/status/text.rs",
  "native/src/status/user.rs",
  "native/src/status/vacuum.rs",
  "native/src/telemetry",
  "native/src/work",
  "policy/src",
  "scripts/lib",
];

export interface Exception {
  path: string;
  rule: string;
  /** A part of the sentence or name. */
  text: string;
  reason: string;
}

/** Sentences in clean files that may break a rule. One without a finding fails the check as well. */
export const exceptions: Exception[] = [];
