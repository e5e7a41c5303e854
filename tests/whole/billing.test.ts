import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { appendFileSync, rmSync } from "node:fs";
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
import {
  charge,
  checkoutEvent,
  StripeApi,
  stripeEvent,
  stripeSignature,
  subscriptionEvent,
  subscriptionItem,
} from "./stripe.ts";

const lifetime = { after };
const stack = await startStack(lifetime);
const secret = "whsec_of_the_test";
const subject = `auth0|${randomUUID()}`;
const stripe = await StripeApi.start(lifetime);
const folder = temporaryFolder("weir-billing-");
whenOver(lifetime, () => rmSync(folder, { recursive: true, force: true }));
const created = await stack.weir("key", "create", "--name", "billing", "--scope", "admin");
assert.equal(created.code, 0, created.stderr);
const key = /weir_sk_[\w-]+/.exec(created.stdout)?.[0] ?? "";
const port = await freePort();

let running: Service | undefined;

/** Starts the backend, after the one before. */
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

async function tell(event: string, signature = stripeSignature(event, secret)): Promise<number> {
  const answer = await fetch(`http://127.0.0.1:${port}/`, {
    method: "POST",
    headers: { "stripe-signature": signature },
    body: event,
  });
  return answer.status;
}

const token = await stack.weir("token", "--plan", "free", "--user", subject);
const user = new Caller(stack.edge.from(someAddress()), token.stdout.trim());
const currentPlan = async (): Promise<string | undefined> => (await user.usage()).plan;
const submit = async (): Promise<void> => {
  const { job } = await user.accepted("analysis", { files: [goFile] });
  await user.finished(job.id);
};

describe("the example of a backend between Stripe and Weir", () => {
  it("sets plans by events that come twice, out of order and from strangers", async () => {
    await startBackend();
    const now = Math.floor(Date.now() / 1000);
    const upgraded = { id: "evt_2", created: now, subject, plan: "pro" };
    assert.equal(await tell(subscriptionEvent("updated", upgraded)), 204);
    assert.equal(await currentPlan(), "pro");
    assert.equal(await tell(subscriptionEvent("updated", upgraded)), 204, "again");
    const older = subscriptionEvent("created", { id: "evt_1", created: now - 10, subject, plan: "free" });
    assert.equal(await tell(older), 204, "late, and acknowledged");
    assert.equal(await currentPlan(), "pro");
    const forged = subscriptionEvent("updated", { id: "evt_3", created: now + 100, subject, plan: "enterprise" });
    assert.equal(await tell(forged, stripeSignature(forged, "whsec_of_another_endpoint")), 400);
    assert.equal(await currentPlan(), "pro");
    const unknown = subscriptionEvent("updated", { id: "evt_4", created: now + 200, subject, plan: "platinum" });
    assert.equal(await tell(unknown), 204, "a product that Weir does not know");
    const over = subscriptionEvent("deleted", { id: "evt_5", created: now + 300, subject, plan: "pro" });
    assert.equal(await tell(over), 204);
    assert.equal(await currentPlan(), "free");
  });

  it("keeps a paid plan when an unpaid one of the same second follows", async () => {
    await startBackend();
    const created = Math.floor(Date.now() / 1000) + 400;
    const paid = { id: "evt_8", created, subject, plan: "pro" };
    assert.equal(await tell(subscriptionEvent("updated", paid)), 204);
    const unpaid = { id: "evt_9", created, subject, plan: "pro", status: "incomplete" };
    assert.equal(await tell(subscriptionEvent("created", unpaid)), 204);
    assert.equal(await currentPlan(), "pro");
    const expired = { id: "evt_10", created: created + 1, subject, plan: "pro", status: "incomplete_expired" };
    assert.equal(await tell(subscriptionEvent("updated", expired)), 204);
    assert.equal(await currentPlan(), "free");
  });

  it("applies a purchase once, even if Stripe repeats the event", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const bought = { session: "cs_1", subject, meter: "analysis", amount: 100 };
    for (const id of ["evt_6", "evt_7"]) assert.equal(await tell(checkoutEvent("completed", { id, ...bought })), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("applies a purchase after its delayed payment arrives", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const bought = { session: "cs_2", subject, meter: "analysis", amount: 100 };
    assert.equal(await tell(checkoutEvent("completed", { id: "evt_11", ...bought, payment: "unpaid" })), 204);
    assert.equal((await user.usage()).analysis.remaining, before);
    assert.equal(await tell(checkoutEvent("async_payment_succeeded", { id: "evt_12", ...bought })), 204);
    assert.equal((await user.usage()).analysis.remaining, before + 100);
  });

  it("applies a purchase that a coupon pays for", async () => {
    const before = (await user.usage()).analysis.remaining ?? 0;
    const given = { session: "cs_3", subject, meter: "analysis", amount: 100, payment: "no_payment_required" };
    assert.equal(await tell(checkoutEvent("completed", { id: "evt_13", ...given })), 204);
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
    stripe.answers = 1;
    stripe.failures = 1_000_000;
    await startBackend();
    await until("a long outage", async () => stripe.failures < 1_000_000 - 5);
    stripe.failures = 0;
    await until("the second event", async () => stripe.events.size === before.size + 2);
    const taken = [...stripe.taken].filter(([id]) => !before.has(id)).map(([, times]) => times);
    assert.deepEqual(taken, [1, 1]);
  });

  it("counts an event as delivered that Stripe has already", async () => {
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
    await until("the refusal", async () => backend.recent.some((line) => line.includes("configured to refuse")));
    assert.ok(backend.recent.some((line) => line.startsWith("refused {") && line.includes('"event_name":"analysis"')));
    await submit();
    await until("the next event", async () => stripe.events.size === before + 1);
  });

  it("reports usage although other users have no customer", async () => {
    const backend = await startBackend();
    const before = stripe.events.size;
    const other = await stack.weir("token", "--plan", "free", "--user", `auth0|${randomUUID()}`);
    const stranger = new Caller(stack.edge.from(someAddress()), other.stdout.trim());
    const { job } = await stranger.accepted("analysis", { files: [goFile] });
    await stranger.finished(job.id);
    await submit();
    await until("the event of the customer", async () => stripe.events.size === before + 1);
    assert.ok(backend.recent.some((line) => line.startsWith("no customer for auth0|")));
  });

  it("keeps the customers over a restart, without a search", async () => {
    appendFileSync(join(folder, "customers"), '{"subject": "cut of');
    await startBackend();
    const before = stripe.events.size;
    await submit();
    await until("the next event", async () => stripe.events.size === before + 1);
    const customers = new Set([...stripe.events.values()].map((event) => event.customer));
    assert.deepEqual([...customers], ["cus_1"]);
  });

  it("acknowledges events that it cannot apply, and prints why", async () => {
    const backend = await startBackend();
    const created = Math.floor(Date.now() / 1000) + 1000;
    let id = 100;
    const send = async (members: object, event: object = {}): Promise<string> => {
      const of = { id: `evt_${id++}`, created, subject, plan: "enterprise", ...event };
      assert.equal(await tell(subscriptionEvent("updated", of, members)), 204);
      const line = await until("a line", async () => backend.recent.find((line) => line.includes(`${of.id} `)));
      assert.ok(line.startsWith("ignored "), line);
      return line;
    };
    const list = (...data: unknown[]): object => ({ items: { object: "list", data, has_more: false } });
    const stranger = { id: "sub_8", customer: "cus_8" };
    assert.match(await send({ ...stranger, metadata: {} }), /metadata\.subject/);
    assert.match(await send({ ...stranger, metadata: null }), /metadata\.subject/);
    for (const items of [list(), list(null), { items: null }, list({ price: null })]) {
      assert.match(await send(items), /no price names a plan/);
    }
    assert.match(await send(list(subscriptionItem(null))), /no price names a plan/, "a foreign product");
    assert.match(await send(list(subscriptionItem("enterprise", "metered"))), /no price names a plan/);
    assert.match(await send({}, { plan: "stickers" }), /unknown plan/i);
    // A subject that Weir refuses.
    assert.match(await send({ metadata: { subject: "x".repeat(256) } }), / 404 /);
    assert.match(await send({}, { created: created - 5000 }), /older/);
    const unpaid = checkoutEvent("completed", { id: "evt_99", session: "cs_9", subject, meter: "nothing", amount: 1 });
    assert.equal(await tell(unpaid), 204);
    assert.equal(await currentPlan(), "free", "nothing of this was applied");
    // The others are not kept waiting.
    const paid = list(null, subscriptionItem("analysis", "metered"), subscriptionItem("pro"));
    const event = { id: "evt_200", created: created + 1, subject, plan: "-" };
    assert.equal(await tell(subscriptionEvent("updated", event, paid)), 204);
    assert.equal(await currentPlan(), "pro", "the first item does not count");
  });

  it("sets the paid month, and plans of paused and unpaid subscriptions", async () => {
    await startBackend({ PAUSED_PLAN: "pro_plus", UNPAID_PLAN: "enterprise" });
    let created = Math.floor(Date.now() / 1000) + 2000;
    let id = 300;
    const event = (status = "active"): Parameters<typeof subscriptionEvent>[1] => ({
      id: `evt_${id++}`,
      created: created++,
      subject,
      plan: "pro",
      status,
    });
    const anchor = Math.floor(Date.now() / 1000) - 40 * 86_400;
    assert.equal(await tell(subscriptionEvent("updated", event(), { billing_cycle_anchor: anchor })), 204);
    const { period } = await user.usage();
    const day = (time: string | number): string => new Date(time).toISOString().slice(8, 19);
    assert.equal(period && day(period.start), day(anchor * 1000));
    for (const [type, status, members, plan] of [
      ["paused", "paused", {}, "pro_plus"],
      ["updated", "active", {}, "pro"],
      ["updated", "active", { pause_collection: { behavior: "void", resumes_at: null } }, "pro_plus"],
      ["updated", "past_due", {}, "pro"],
      ["updated", "unpaid", {}, "enterprise"],
      ["updated", "trialing", { billing_cycle_anchor: created + 7 * 86_400 }, "pro"],
    ] as const) {
      assert.equal(await tell(subscriptionEvent(type, event(status), members)), 204);
      assert.equal(await currentPlan(), plan, `${type} ${status}`);
    }
  });

  it("keeps the plan of a new subscription when the old one ends", async () => {
    await startBackend();
    const created = Math.floor(Date.now() / 1000) + 3000;
    const next = { id: "evt_400", created, subject, plan: "pro_plus" };
    assert.equal(await tell(subscriptionEvent("created", next, { id: "sub_2" })), 204);
    const end = { id: "evt_401", created, subject, plan: "pro", status: "canceled" };
    assert.equal(await tell(subscriptionEvent("deleted", end)), 204);
    assert.equal(await currentPlan(), "pro_plus");
  });

  it("ends plans whose prices have lost their lookup keys", async () => {
    await startBackend({ UNPAID_PLAN: "pro_plus" });
    let created = Math.floor(Date.now() / 1000) + 4000;
    let id = 500;
    const old = { id: "sub_5", items: { data: [subscriptionItem("enterprise", "licensed", { id: "price_old" })] } };
    const moved = { id: "sub_5", items: { data: [subscriptionItem(null, "licensed", { id: "price_old" })] } };
    for (const [type, status, members, plan] of [
      ["created", "active", old, "enterprise"],
      ["updated", "unpaid", moved, "pro_plus"],
      ["updated", "active", moved, "enterprise"],
      ["updated", "paused", moved, "pro_plus"],
      ["updated", "active", moved, "enterprise"],
      ["deleted", "canceled", moved, "pro_plus"],
    ] as const) {
      const event = { id: `evt_${id++}`, created: created++, subject, plan: "-", status };
      assert.equal(await tell(subscriptionEvent(type, event, members)), 204);
      assert.equal(await currentPlan(), plan, `${type} ${status}`);
      // The price is known after a restart too.
      if (type === "created") await startBackend({ UNPAID_PLAN: "pro_plus" });
    }
  });

  it("finds the plan among add-ons, and in metadata", async () => {
    await startBackend();
    stripe.products.set("prod_yearly", { plan: "enterprise" });
    let created = Math.floor(Date.now() / 1000) + 5000;
    let id = 600;
    for (const [name, plan, ...data] of [
      ["an add-on before the plan", "pro", subscriptionItem("seats"), subscriptionItem("pro")],
      ["a plan in the product", "enterprise", subscriptionItem("pro_yearly", "licensed", { product: "prod_yearly" })],
      ["a plan in the price", "pro", subscriptionItem("pro_eur", "licensed", { metadata: { plan: "pro" } })],
      [
        "an add-on with a plan's key",
        "pro_plus",
        subscriptionItem("enterprise"),
        subscriptionItem(null, "licensed", { metadata: { plan: "pro_plus" } }),
      ],
    ] as const) {
      const event = subscriptionEvent(
        "updated",
        { id: `evt_${id++}`, created: created++, subject, plan: "-" },
        { id: "sub_6", items: { data } },
      );
      // Stripe repeats it.
      for (const _ of [1, 2]) assert.equal(await tell(event), 204);
      assert.equal(await currentPlan(), plan, name);
    }
  });

  it("ends plans whose subject was removed or changed", async () => {
    await startBackend();
    const created = Math.floor(Date.now() / 1000) + 6000;
    const other = `auth0|${randomUUID()}`;
    const token = (await stack.weir("token", "--plan", "free", "--user", other)).stdout.trim();
    const another = new Caller(stack.edge.from(someAddress()), token);
    const send = async (seconds: number, members: object, status = "active"): Promise<void> => {
      const event = { id: `evt_7${seconds}`, created: created + seconds, subject: other, plan: "enterprise", status };
      assert.equal(await tell(subscriptionEvent("updated", event, { id: "sub_7", ...members })), 204);
    };
    await send(0, {});
    await send(1, { metadata: { subject } });
    assert.deepEqual([(await another.usage()).plan, await currentPlan()], ["free", "enterprise"]);
    await send(2, { metadata: {} }, "canceled");
    assert.equal(await currentPlan(), "pro_plus", "of the other subscription");
  });

  it("takes back what a refunded or disputed payment bought", async () => {
    await startBackend();
    const other = `auth0|${randomUUID()}`;
    const token = (await stack.weir("token", "--plan", "free", "--user", other)).stdout.trim();
    const buyer = new Caller(stack.edge.from(someAddress()), token);
    let id = 800;
    const buy = async (payment: string): Promise<void> => {
      const bought = { session: `cs_${payment}`, subject: other, meter: "analysis", amount: 100 };
      const event = checkoutEvent("completed", { id: `evt_${id++}`, ...bought });
      stripe.sessions.set(payment, JSON.parse(event).data.object);
      assert.equal(await tell(event), 204);
    };
    const refund = async (payment: string, refunded: number): Promise<void> => {
      const event = stripeEvent("charge.refunded", `evt_${id++}`, charge(payment, refunded));
      // Stripe repeats it.
      for (const _ of [1, 2]) assert.equal(await tell(event), 204);
    };
    const dispute = async (payment: string, status: string, event: string): Promise<void> => {
      const object = { id: `du_${payment}`, object: "dispute", amount: 2000, status, charge: charge(payment, 0) };
      stripe.disputes.set(object.id, object);
      assert.equal(await tell(stripeEvent(`charge.dispute.${event}`, `evt_${id++}`, object)), 204);
    };
    const remaining = async (): Promise<number> => (await buyer.usage()).analysis.remaining ?? 0;
    const before = await remaining();
    await buy("pi_1");
    await refund("pi_1", 500);
    assert.equal(await remaining(), before + 75, "a quarter was refunded");
    await refund("pi_1", 2000);
    assert.equal(await remaining(), before);

    await buy("pi_2");
    await dispute("pi_2", "warning_needs_response", "created");
    assert.equal(await remaining(), before + 100, "an inquiry takes no money");
    await dispute("pi_2", "needs_response", "created");
    assert.equal(await remaining(), before);
    for (const event of ["closed", "funds_reinstated", "created"]) await dispute("pi_2", "won", event);
    assert.equal(await remaining(), before + 100, "given back once");
    await refund("pi_3", 2000);
    assert.equal(await remaining(), before + 100, "a payment for something else");

    // The refund's event arrives first.
    const late = { session: "cs_pi_4", subject: other, meter: "analysis", amount: 100 };
    const event = checkoutEvent("completed", { id: "evt_899", ...late });
    stripe.sessions.set("pi_4", JSON.parse(event).data.object);
    await refund("pi_4", 2000);
    assert.equal(await tell(event), 204);
    assert.equal(await remaining(), before + 100);
  });
});
