import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { Service } from "../../scripts/lib/process.ts";
import { temporaryFolder } from "../../scripts/lib/temporary-folder.ts";
import { whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { until } from "../harness/until.ts";
import { Caller } from "./jobs.ts";
import { goFile } from "./samples.ts";
import { checkoutEvent, StripeApi, stripeSignature, subscriptionEvent } from "./stripe.ts";

const lifetime = { after };
const stack = await startStack(lifetime);
const secret = "whsec_of_the_test";
const subject = `auth0|${randomUUID()}`;
const stripe = await StripeApi.start(lifetime, { [subject]: "cus_1" });
const folder = temporaryFolder("weir-billing-");
whenOver(lifetime, () => rmSync(folder, { recursive: true, force: true }));
const created = await stack.weir("key", "create", "--name", "billing", "--scope", "admin");
assert.equal(created.code, 0, created.stderr);
const key = /weir_sk_[\w-]+/.exec(created.stdout)?.[0] ?? "";
const port = await freePort();

let running: Service | undefined;

/** Starts the backend, after the one before. */
async function startBackend(): Promise<Service> {
  await running?.stop();
  const backend = new Service("backend", process.execPath, [join(root, "examples", "billing", "backend.mjs")], {
    cwd: folder,
    env: {
      ...process.env,
      STRIPE_KEY: "sk_test_1",
      STRIPE_WEBHOOK_SECRET: secret,
      STRIPE_URL: stripe.url,
      WEIR_URL: stack.origin.url,
      WEIR_KEY: key,
      PORT: String(port),
      USAGE_INTERVAL: "200",
    },
  });
  running = backend;
  whenOver(lifetime, () => backend.stop());
  await until("the backend to listen", async () => backend.recent.some((line) => line.startsWith("listening")));
  return backend;
}

async function tell(event: string, signature = stripeSignature(event, secret)): Promise<number> {
  const answer = await fetch(`http://127.0.0.1:${port}/`, {
    method: "POST",
    headers: { "stripe-signature": signature },
    body: event,
  });
  return answer.status;
}

const token = await stack.weir("token", "--tier", "free", "--user", subject);
const user = new Caller(stack.edge.from(someAddress()), token.stdout.trim());
const tier = async (): Promise<string | undefined> => (await user.usage()).tier;

describe("the example of a backend between Stripe and Weir", () => {
  it("sets plans by events that come twice, out of order and from strangers", async () => {
    await startBackend();
    const now = Math.floor(Date.now() / 1000);
    const upgraded = { id: "evt_2", created: now, subject, plan: "pro" };
    assert.equal(await tell(subscriptionEvent("updated", upgraded)), 204);
    assert.equal(await tier(), "pro");
    assert.equal(await tell(subscriptionEvent("updated", upgraded)), 204, "again");
    const older = subscriptionEvent("created", { id: "evt_1", created: now - 10, subject, plan: "free" });
    assert.equal(await tell(older), 204, "late, and acknowledged");
    assert.equal(await tier(), "pro");
    const forged = subscriptionEvent("updated", { id: "evt_3", created: now + 100, subject, plan: "enterprise" });
    assert.equal(await tell(forged, stripeSignature(forged, "whsec_of_somebody_else")), 400);
    assert.equal(await tier(), "pro");
    const unknown = subscriptionEvent("updated", { id: "evt_4", created: now + 200, subject, plan: "platinum" });
    assert.equal(await tell(unknown), 502, "Stripe keeps it until the plan is there");
    const over = subscriptionEvent("deleted", { id: "evt_5", created: now + 300, subject, plan: "pro" });
    assert.equal(await tell(over), 204);
    assert.equal(await tier(), "free");
  });

  it("gives what was bought once, however often Stripe says so", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    for (const event of ["evt_6", "evt_7"])
      assert.equal(await tell(checkoutEvent(event, "cs_1", subject, "analysis", 100)), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("tells Stripe every usage event once, also when it is killed and when Stripe fails", async () => {
    const backend = await startBackend();
    const submit = async (): Promise<void> => {
      const { job } = await user.accepted("analysis", { files: [goFile] });
      await user.finished(job.id);
    };
    await submit();
    await until("the first event", async () => stripe.events.size === 1);
    stripe.failures = 3;
    await submit();
    await until("the second event", async () => stripe.events.size === 2);
    backend.child.kill("SIGKILL");
    await backend.ended;
    await submit();
    await startBackend();
    await until("the third event", async () => stripe.events.size === 3);
    for (const event of stripe.events.values()) {
      assert.equal(event.event_name, "analysis");
      assert.equal(event.customer, "cus_1");
      assert.equal(event.value, "1");
    }
  });
});
