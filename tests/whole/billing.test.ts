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

/** Starts the backend after the previous one has stopped. */
async function startBackend(env: NodeJS.ProcessEnv = {}): Promise<Service> {
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
      ...env,
    },
  });
  running = backend;
  whenOver(lifetime, () => backend.stop());
  await until("the backend to listen", async () => backend.recent.some((line) => line.startsWith("listening")));
  return backend;
}

async function deliver(event: string, signature = stripeSignature(event, secret)): Promise<number> {
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
const submit = async (): Promise<void> => {
  const { job } = await user.accepted("analysis", { files: [goFile] });
  await user.finished(job.id);
};

describe("the example of a backend between Stripe and Weir", () => {
  it("sets plans despite repeated, reordered and forged events", async () => {
    await startBackend();
    const now = Math.floor(Date.now() / 1000);
    const upgraded = { id: "evt_2", created: now, subject, plan: "pro" };
    assert.equal(await deliver(subscriptionEvent("updated", upgraded)), 204);
    assert.equal(await tier(), "pro");
    assert.equal(await deliver(subscriptionEvent("updated", upgraded)), 204, "again");
    const older = subscriptionEvent("created", { id: "evt_1", created: now - 10, subject, plan: "free" });
    assert.equal(await deliver(older), 204, "late, and acknowledged");
    assert.equal(await tier(), "pro");
    const forged = subscriptionEvent("updated", { id: "evt_3", created: now + 100, subject, plan: "enterprise" });
    assert.equal(await deliver(forged, stripeSignature(forged, "whsec_of_somebody_else")), 400);
    assert.equal(await tier(), "pro");
    const unknown = subscriptionEvent("updated", { id: "evt_4", created: now + 200, subject, plan: "platinum" });
    assert.equal(await deliver(unknown), 502, "Stripe keeps it until the plan is there");
    const over = subscriptionEvent("deleted", { id: "evt_5", created: now + 300, subject, plan: "pro" });
    assert.equal(await deliver(over), 204);
    assert.equal(await tier(), "free");
  });

  it("keeps a paid plan when an unpaid event of the same second follows", async () => {
    await startBackend();
    const created = Math.floor(Date.now() / 1000) + 400;
    const paid = { id: "evt_8", created, subject, plan: "pro" };
    assert.equal(await deliver(subscriptionEvent("updated", paid)), 204);
    const unpaid = { id: "evt_9", created, subject, plan: "pro", status: "incomplete" };
    assert.equal(await deliver(subscriptionEvent("created", unpaid)), 204);
    assert.equal(await tier(), "pro");
    const expired = { id: "evt_10", created: created + 1, subject, plan: "pro", status: "incomplete_expired" };
    assert.equal(await deliver(subscriptionEvent("updated", expired)), 204);
    assert.equal(await tier(), "free");
  });

  it("grants a purchase once, even if Stripe repeats the event", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const bought = { session: "cs_1", subject, meter: "analysis", amount: 100 };
    for (const id of ["evt_6", "evt_7"])
      assert.equal(await deliver(checkoutEvent("completed", { id, ...bought })), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("grants a purchase with a slow payment when it is paid", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const bought = { session: "cs_2", subject, meter: "analysis", amount: 100 };
    assert.equal(await deliver(checkoutEvent("completed", { id: "evt_11", ...bought, payment: "unpaid" })), 204);
    assert.equal((await user.usage()).analysis.remaining, before);
    assert.equal(await deliver(checkoutEvent("async_payment_succeeded", { id: "evt_12", ...bought })), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("grants a purchase that a coupon pays for", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const given = { session: "cs_3", subject, meter: "analysis", amount: 100, payment: "no_payment_required" };
    assert.equal(await deliver(checkoutEvent("completed", { id: "evt_13", ...given })), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("reports each usage event to Stripe once despite kills and failures", async () => {
    const backend = await startBackend();
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

  it("sends nothing twice in an outage longer than Stripe's memory", async () => {
    await running?.stop();
    const before = new Set(stripe.events.keys());
    await submit();
    await submit();
    // The look-up of the customer and one event.
    stripe.answers = 2;
    stripe.failures = 1_000_000;
    await startBackend();
    await until("a long outage", async () => stripe.failures < 1_000_000 - 5);
    stripe.failures = 0;
    await until("the second event", async () => stripe.events.size === before.size + 2);
    const taken = [...stripe.taken].filter(([id]) => !before.has(id)).map(([, times]) => times);
    assert.deepEqual(taken, [1, 1]);
  });

  it("treats an event that Stripe already has as delivered", async () => {
    await running?.stop();
    rmSync(join(folder, "cursor"));
    const { duplicates, events } = stripe;
    const sent = events.size;
    const backend = await startBackend();
    await submit();
    await until("the event after those", async () => events.size === sent + 1);
    assert.ok(stripe.duplicates > duplicates);
    assert.ok(!backend.recent.some((line) => line.startsWith("refused")));
  });

  it("starts at the configured position without a cursor", async () => {
    await running?.stop();
    rmSync(join(folder, "cursor"));
    const { duplicates, events } = stripe;
    const sent = events.size;
    await startBackend({ USAGE_AFTER: new Date().toISOString() });
    await submit();
    await until("the event after that time", async () => events.size === sent + 1);
    assert.equal(stripe.duplicates, duplicates);
  });

  it("skips and logs a usage event that Stripe refuses permanently", async () => {
    const backend = await startBackend();
    const before = stripe.events.size;
    stripe.refusals = 1;
    await submit();
    await until("the refusal", async () => backend.recent.some((line) => line.includes("refused on request")));
    assert.ok(backend.recent.some((line) => line.startsWith("refused {") && line.includes('"event_name":"analysis"')));
    await submit();
    await until("the next event", async () => stripe.events.size === before + 1);
  });

  it("waits a limited time for a customer that Stripe does not find yet", async () => {
    await startBackend();
    const before = stripe.events.size;
    stripe.customers.clear();
    const searches = stripe.searches;
    await submit();
    await until("some rounds", async () => stripe.searches > searches + 3);
    stripe.customers.set(subject, "cus_1");
    await until("the event of the new customer", async () => stripe.events.size === before + 1);
    await startBackend({ CUSTOMER_WITHIN: "0" });
    stripe.customers.clear();
    const searched = stripe.searches;
    await submit();
    await until("a round", async () => stripe.searches > searched);
    stripe.customers.set(subject, "cus_1");
    await submit();
    await until("the event after it", async () => stripe.events.size === before + 2);
  });
});
