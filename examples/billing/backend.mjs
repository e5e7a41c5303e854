// Between Stripe and Weir: purchases go to Weir, and usage goes to Stripe. The README describes the setup in Stripe.
import { appendFile, readFile, rename, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import Stripe from "stripe";

const { STRIPE_KEY, STRIPE_WEBHOOK_SECRET, STRIPE_URL, WEIR_URL, WEIR_KEY } = process.env;
const { PORT = "4242", CURSOR_FILE = "cursor", CUSTOMERS_FILE = "customers", USAGE_INTERVAL = "10000" } = process.env;
// The plan without a subscription, and the plans of paused and unpaid ones.
const { DEFAULT_PLAN = "free", PAUSED_PLAN = DEFAULT_PLAN, UNPAID_PLAN = DEFAULT_PLAN } = process.env;
// Where usage starts without a cursor: the first event, `now`, or a time.
const { USAGE_AFTER = "" } = process.env;
const at = STRIPE_URL ? new URL(STRIPE_URL) : undefined;
const stripe = new Stripe(STRIPE_KEY, at && { protocol: at.protocol.slice(0, -1), host: at.hostname, port: at.port });

/** A failure that another attempt may not have. */
class Temporary extends Error {}

async function weir(method, path, body, headers = {}) {
  const request = { method, headers: { authorization: `Bearer ${WEIR_KEY}`, ...headers } };
  const answer = await fetch(new URL(path, WEIR_URL), {
    ...request,
    ...(body && { body: JSON.stringify(body) }),
  }).catch((error) => {
    throw new Temporary(`${method} ${path}: ${error.cause ?? error}`);
  });
  if (answer.ok) return answer.json();
  const isTemporary = answer.status >= 500 || [401, 403, 408, 429].includes(answer.status);
  throw new (isTemporary ? Temporary : Error)(`${method} ${path}: ${answer.status} ${await answer.text()}`);
}

/** Stripe's customers by subject, from the events. */
const customers = new Map();
for (const line of (await readFile(CUSTOMERS_FILE, "utf8").catch(() => "")).split("\n")) {
  try {
    const { subject, customer } = JSON.parse(line);
    customers.set(subject, customer);
  } catch {
    // An empty line, or one that was cut off by a kill.
  }
}

async function remember(subject, customer) {
  const id = customer?.id ?? customer;
  if (!id || customers.get(subject) === id) return;
  const line = `\n${JSON.stringify({ subject, customer: id })}\n`;
  await appendFile(CUSTOMERS_FILE, line).catch((error) => {
    throw new Temporary(String(error));
  });
  customers.set(subject, id);
}

/** The plan that a subscription's licensed price names. Metered prices bill usage. */
function planOf({ items }) {
  const prices = (items?.data ?? []).map((item) => item?.price);
  return prices.find((price) => price?.lookup_key && price.recurring?.usage_type !== "metered")?.lookup_key;
}

// A bank transfer completes its session before it is paid.
const payments = ["checkout.session.completed", "checkout.session.async_payment_succeeded"];

/** Returns why an event changed nothing, or undefined. */
async function apply({ id, type, created, data: { object } }) {
  const isSubscription = type.startsWith("customer.subscription.");
  const isCustomer = ["customer.created", "customer.updated"].includes(type);
  if (!isSubscription && !isCustomer && !payments.includes(type)) return;
  const subject = object.metadata?.subject;
  if (!subject) return "it has no metadata.subject";
  const holder = `/admin/holders/${encodeURIComponent(subject)}`;
  if (isCustomer) return remember(subject, object.id);
  if (isSubscription) {
    const bought = planOf(object);
    if (!bought) return "no price names a plan";
    // Not paid yet. This event may arrive after the payment's event of the same second.
    if (object.status === "incomplete") return "it is not paid yet";
    const isOver = type.endsWith(".deleted") || ["canceled", "incomplete_expired"].includes(object.status);
    const isPaused = object.status === "paused" || object.pause_collection;
    const unpaid = object.status === "unpaid" ? UNPAID_PLAN : undefined;
    const plan = isOver ? DEFAULT_PLAN : (unpaid ?? (isPaused ? PAUSED_PLAN : bought));
    const time = (seconds) => new Date(seconds * 1000).toISOString();
    const change = { plan, event_id: id, occurred_at: time(created), effective: "now", subscription: object.id };
    const anchor = object.billing_cycle_anchor;
    // Weir accepts a start within a year. A longer trial gets its months later.
    if (plan === bought && anchor * 1000 < Date.now() + 365 * 86_400_000) change.period_start = time(anchor);
    // Before the plan: usage on it then has a customer.
    await remember(subject, object.customer);
    const { applied, reason } = await weir("PUT", `${holder}/plan`, change);
    return applied ? undefined : `not applied: ${reason}`;
  }
  if (!object.metadata.amount) return "it has no metadata.amount";
  if (object.payment_status === "unpaid") return "it is not paid yet";
  await remember(subject, object.customer);
  const grant = { meter: object.metadata.meter, amount: Number(object.metadata.amount), reason: object.id };
  await weir("POST", `${holder}/grants`, grant, { "idempotency-key": object.id });
}

const server = createServer(async (request, response) => {
  let event;
  try {
    const body = Buffer.concat(await request.toArray());
    event = stripe.webhooks.constructEvent(body, request.headers["stripe-signature"], STRIPE_WEBHOOK_SECRET);
  } catch {
    return response.writeHead(400).end("not signed by Stripe\n");
  }
  // Stripe repeats an event that is not acknowledged. That helps against temporary failures only.
  const failed = await apply(event).catch((error) => error);
  if (failed) console.error(failed instanceof Temporary ? "failed" : "ignored", event.id, event.type, String(failed));
  response.writeHead(failed instanceof Temporary ? 502 : 204).end();
});

/** Subjects without a customer that were printed. */
const unknown = new Set();

/** Reports a usage event to Stripe. */
async function report({ id, subject, time, data }) {
  const value = data.amount - data.from_grants;
  if (value <= 0) return;
  const customer = customers.get(subject);
  if (!customer) {
    // A subject without a customer has bought nothing.
    if (!unknown.has(subject)) console.error("no customer for", subject);
    unknown.add(subject);
    return;
  }
  const payload = { stripe_customer_id: customer, value: String(value) };
  // Stripe counts an identifier once.
  const event = { event_name: data.meter, identifier: id, timestamp: Math.floor(Date.parse(time) / 1000), payload };
  try {
    await stripe.billing.meterEvents.create(event);
  } catch (error) {
    // It was delivered before, and the answer was lost.
    if (error.code === "duplicate_meter_event") return;
    // An event that Stripe refuses permanently must not delay the others. A wrong key or a rate limit is no such refusal.
    if (!(error instanceof Stripe.errors.StripeInvalidRequestError)) throw error;
    console.error("refused", JSON.stringify(event), error.message);
  }
}

async function reportUsage() {
  const after = await readFile(CURSOR_FILE, "utf8").catch(() => USAGE_AFTER);
  const read = (limit) => weir("GET", `/admin/usage/events?limit=${limit}${after && `&after=${after}`}`);
  const { events, next } = await read(100);
  let count = 0;
  try {
    for (; count < events.length; count++) await report(events[count]);
  } finally {
    // Also before an event that failed: Stripe may forget identifiers after a day, and an outage may last longer.
    if (count > 0) await saveCursor(count === events.length ? next : (await read(count)).next);
  }
}

async function saveCursor(cursor) {
  await writeFile(`${CURSOR_FILE}.new`, cursor);
  await rename(`${CURSOR_FILE}.new`, CURSOR_FILE);
}

server.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on ${PORT}`));
for (;;) {
  await reportUsage().catch((error) => console.error(String(error)));
  await sleep(Number(USAGE_INTERVAL));
}
