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
  const error = new (isTemporary ? Temporary : Error)(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  throw Object.assign(error, { status: answer.status });
}

/** What earlier events showed: customers by subject, subjects by subscription, plans by price. */
const customers = new Map();
const subjects = new Map();
const plans = new Map();

/** The entries of a line of the file that the maps lack. */
function newIn({ subject, customer, subscription, price, plan }) {
  const entries = [
    { map: customers, key: subject, value: customer },
    { map: subjects, key: subscription, value: subject },
    { map: plans, key: price, value: plan },
  ];
  return entries.filter(({ map, key, value }) => key && value && map.get(key) !== value);
}

function note(line) {
  for (const { map, key, value } of newIn(line)) map.set(key, value);
}

for (const line of (await readFile(CUSTOMERS_FILE, "utf8").catch(() => "")).split("\n")) {
  try {
    note(JSON.parse(line));
  } catch {
    // An empty line, or one that was cut off by a kill.
  }
}

async function remember({ customer, ...line }) {
  const all = { ...line, customer: customer?.id ?? customer };
  if (newIn(all).length === 0) return;
  await appendFile(CUSTOMERS_FILE, `\n${JSON.stringify(all)}\n`).catch((error) => {
    throw new Temporary(String(error));
  });
  note(all);
}

/** The subject of a subscription, even after it was removed from the metadata. */
function subjectOf({ id, metadata, customer }) {
  const known = metadata?.subject || subjects.get(id);
  if (known) return known;
  const same = [...customers].filter(([, one]) => one === (customer?.id ?? customer));
  return same.length === 1 ? same[0][0] : undefined;
}

/** The plan that a product's metadata names. Events contain only its id. */
async function planOfProduct(product) {
  if (typeof product !== "string") return product?.metadata?.plan;
  const found = await stripe.products.retrieve(product).catch((error) => {
    // It was deleted.
    if (error instanceof Stripe.errors.StripeInvalidRequestError) return undefined;
    throw new Temporary(`product ${product}: ${error}`);
  });
  return found?.metadata?.plan;
}

/**
 * The plans that a subscription's licensed prices may name, with their prices. Metered prices bill usage. The metadata of
 * a price comes before that of its product, and both before lookup keys: Stripe moves a key to the price that replaces it.
 */
async function plansOf({ items }) {
  const all = (items?.data ?? []).map((item) => item?.price);
  const prices = all.filter((price) => price && price.recurring?.usage_type !== "metered");
  const named = async (nameOf) => {
    const names = await Promise.all(prices.map(async (price) => ({ price: price.id, plan: await nameOf(price) })));
    return names.filter(({ plan }) => plan);
  };
  const byPrice = await named((price) => price.metadata?.plan);
  if (byPrice.length > 0) return byPrice;
  const byProduct = await named((price) => planOfProduct(price.product));
  if (byProduct.length > 0) return byProduct;
  return [...(await named((price) => price.lookup_key)), ...(await named((price) => plans.get(price.id)))];
}

/** Sets the first of these plans that Weir knows. An add-on's key names none. Returns the answer, and the plan. */
async function setPlan(path, [first, ...others], change) {
  try {
    return { ...(await weir("PUT", path, { ...change, plan: first.plan })), set: first };
  } catch (error) {
    // 409: this event has set another one of them.
    if (others.length === 0 || ![409, 422].includes(error.status)) throw error;
    return setPlan(path, others, change);
  }
}

// A bank transfer completes its session before it is paid.
const payments = ["checkout.session.completed", "checkout.session.async_payment_succeeded"];

const pathOf = (subject) => `/admin/holders/${encodeURIComponent(subject)}`;

/** Returns why an event changed nothing, or undefined. */
async function apply(event) {
  const { type, data } = event;
  if (type.startsWith("customer.subscription.")) return applySubscription(event, data.object);
  if (type === "charge.refunded") return applyRefund(data.object);
  if (type.startsWith("charge.dispute.")) return applyDispute(data.object);
  const isCustomer = ["customer.created", "customer.updated"].includes(type);
  if (!isCustomer && !payments.includes(type)) return;
  const subject = data.object.metadata?.subject;
  if (!subject) return "it has no metadata.subject";
  if (isCustomer) return remember({ subject, customer: data.object.id });
  return applyPurchase(subject, data.object);
}

async function applySubscription({ id, type, created }, object) {
  const { id: subscription, status, customer } = object;
  const subject = subjectOf(object);
  if (!subject) return "it has no metadata.subject";
  // Not paid yet. This event may arrive after the payment's event of the same second.
  if (status === "incomplete") return "it is not paid yet";
  const isOver = type.endsWith(".deleted") || ["canceled", "incomplete_expired"].includes(status);
  // An end needs no plan's name, and its prices may have lost theirs.
  const bought = isOver ? [] : await plansOf(object);
  const before = subjects.get(subscription);
  const isWeirs = before !== undefined || bought.length > 0;
  const isPaused = status === "paused" || object.pause_collection;
  const replaced = status === "unpaid" ? UNPAID_PLAN : isPaused ? PAUSED_PLAN : undefined;
  // Weir ignores the end of a subscription that did not set the plan, such as that of another product.
  const plan = isOver || (replaced && !isWeirs) ? DEFAULT_PLAN : replaced;
  if (!plan && bought.length === 0) return "no price names a plan";
  const time = (seconds) => new Date(seconds * 1000).toISOString();
  const change = { event_id: id, occurred_at: time(created), effective: "now", subscription };
  const anchor = object.billing_cycle_anchor;
  // Weir accepts a start within a year. A longer trial gets its months later.
  if (!plan && anchor * 1000 < Date.now() + 365 * 86_400_000) change.period_start = time(anchor);
  // Before the plan: usage on it then has a customer.
  await remember({ subject, customer });
  const { applied, reason, set } = await setPlan(`${pathOf(subject)}/plan`, plan ? [{ plan }] : bought, change);
  if (before && before !== subject) {
    // The subscription was for another user.
    const { period_start, ...end } = { ...change, event_id: `${id}:moved` };
    await setPlan(`${pathOf(before)}/plan`, [{ plan: DEFAULT_PLAN }], end);
  }
  if (!plan) await remember({ ...set, subject, subscription });
  return applied ? undefined : `not applied: ${reason}`;
}

async function applyPurchase(subject, { id, customer, payment_status, metadata }) {
  if (!metadata.amount) return "it has no metadata.amount";
  if (payment_status === "unpaid") return "it is not paid yet";
  await remember({ subject, customer });
  await grant({ subject, id, metadata });
}

/** Grants what a session bought, once. Returns the grant. */
async function grant({ subject, id, metadata }) {
  const wanted = { meter: metadata.meter, amount: Number(metadata.amount), reason: id };
  return weir("POST", `${pathOf(subject)}/grants`, wanted, { "idempotency-key": id });
}

/** Calls Stripe. Only a refusal is permanent. */
async function ask(request) {
  return request.catch((error) => {
    throw error instanceof Stripe.errors.StripeInvalidRequestError ? error : new Temporary(String(error));
  });
}

/**
 * Lowers the grant that a charge paid for by the refunded and the disputed part. What is used of it stays. Returns the
 * purchase, what it should keep and what it has; or undefined if the charge did not pay for an amount.
 */
async function takeBack({ payment_intent, amount, amount_refunded }, disputed) {
  const purchase = await purchaseOf(payment_intent);
  if (!purchase) return undefined;
  // This event may arrive before that of the purchase. Repeated, the request returns the grant.
  const { id } = await grant(purchase);
  const kept = Math.floor(purchase.metadata.amount * Math.max(0, 1 - (amount_refunded + disputed) / amount));
  const lowered = { amount: kept, reason: `${purchase.id} was refunded or disputed` };
  const { amount: left } = await weir("PUT", `${pathOf(purchase.subject)}/grants/${id}`, lowered);
  return { purchase, kept, left };
}

const noPurchase = "it did not pay for an amount";

async function applyRefund(charge) {
  if (!(await takeBack(charge, 0))) return noPurchase;
}

async function applyDispute({ id }) {
  // Events of a dispute may arrive in any order, so its present state counts.
  const { status, charge, amount } = await ask(stripe.disputes.retrieve(id, { expand: ["charge"] }));
  if (status.startsWith("warning")) return "it is an inquiry";
  const isWon = status === "won";
  const taken = await takeBack(charge, isWon ? 0 : amount);
  if (!taken) return noPurchase;
  const { purchase, kept, left } = taken;
  if (isWon && kept > left) await grant({ ...purchase, id, metadata: { ...purchase.metadata, amount: kept - left } });
}

/** The session that a payment belongs to, if it bought an amount. */
async function purchaseOf(payment) {
  if (!payment) return undefined;
  const { data } = await ask(stripe.checkout.sessions.list({ payment_intent: payment?.id ?? payment }));
  const { id, metadata } = data[0] ?? {};
  return metadata?.subject && metadata.amount ? { subject: metadata.subject, id, metadata } : undefined;
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
  // Stripe's meters take no refunds.
  if (value < 0) console.error("refund by hand", JSON.stringify({ subject, meter: data.meter, value, id }));
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
