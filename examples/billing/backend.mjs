// Connects Stripe and Weir: passes on purchases, and reports usage. The README lists the required setup in Stripe.
import { readFile, rename, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import Stripe from "stripe";

const { STRIPE_KEY, STRIPE_WEBHOOK_SECRET, STRIPE_URL, WEIR_URL, WEIR_KEY } = process.env;
const { PORT = "4242", CURSOR_FILE = "cursor", DEFAULT_PLAN = "free" } = process.env;
const { USAGE_INTERVAL = "10000", CUSTOMER_WITHIN = "600000" } = process.env;
// Where to start without a cursor: the first event, now, or a time.
const { USAGE_AFTER = "" } = process.env;
const at = STRIPE_URL ? new URL(STRIPE_URL) : undefined;
const stripe = new Stripe(STRIPE_KEY, at && { protocol: at.protocol.slice(0, -1), host: at.hostname, port: at.port });

async function weir(method, path, body, headers = {}) {
  const answer = await fetch(new URL(path, WEIR_URL), {
    method,
    headers: { authorization: `Bearer ${WEIR_KEY}`, ...headers },
    ...(body && { body: JSON.stringify(body) }),
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

// A bank transfer completes its session before it is paid.
const payments = ["checkout.session.completed", "checkout.session.async_payment_succeeded"];

async function bought({ id, type, created, data: { object } }) {
  const holder = `/admin/holders/${encodeURIComponent(object.metadata?.subject ?? "")}`;
  if (type.startsWith("customer.subscription.")) {
    // Not paid yet. This event may arrive after the payment's event of the same second, and must not undo it.
    if (object.status === "incomplete") return;
    const isOver = type.endsWith(".deleted") || ["unpaid", "incomplete_expired"].includes(object.status);
    const plan = isOver ? DEFAULT_PLAN : object.items.data[0].price.lookup_key;
    const occurred_at = new Date(created * 1000).toISOString();
    await weir("PUT", `${holder}/plan`, { plan, event_id: id, occurred_at, effective: "now" });
  } else if (payments.includes(type) && object.metadata?.amount && object.payment_status !== "unpaid") {
    const grant = { meter: object.metadata.meter, amount: Number(object.metadata.amount), reason: object.id };
    await weir("POST", `${holder}/grants`, grant, { "idempotency-key": object.id });
  }
}

const server = createServer(async (request, response) => {
  let event;
  try {
    const body = Buffer.concat(await request.toArray());
    event = stripe.webhooks.constructEvent(body, request.headers["stripe-signature"], STRIPE_WEBHOOK_SECRET);
  } catch {
    return response.writeHead(400).end("not signed by Stripe\n");
  }
  // Stripe repeats events that are not acknowledged.
  const failed = await bought(event).then(() => undefined, String);
  if (failed) console.error(event.id, failed);
  response.writeHead(failed ? 502 : 204).end();
});

/** Reports a usage event to Stripe. Returns false if it is too early, because a new customer may not be found yet. */
async function told({ id, subject, time, data }) {
  const value = data.amount - data.from_grants;
  if (value <= 0) return true;
  const found = await stripe.customers.search({ query: `metadata["subject"]:${JSON.stringify(subject)}` });
  // A holder that is still no customer by then has a free plan.
  if (!found.data[0]) return Date.now() - Date.parse(time) > Number(CUSTOMER_WITHIN);
  const payload = { stripe_customer_id: found.data[0].id, value: String(value) };
  // Stripe ignores a repeated identifier.
  const event = { event_name: data.meter, identifier: id, timestamp: Math.floor(Date.parse(time) / 1000), payload };
  try {
    await stripe.billing.meterEvents.create(event);
  } catch (error) {
    // It was delivered before, but the answer was lost.
    if (error.code === "duplicate_meter_event") return true;
    // An event that is refused permanently must not block all others. A wrong key or a rate limit is not such a
    // refusal.
    if (!(error instanceof Stripe.errors.StripeInvalidRequestError)) throw error;
    console.error("refused", JSON.stringify(event), error.message);
  }
  return true;
}

async function used() {
  const after = await readFile(CURSOR_FILE, "utf8").catch(() => USAGE_AFTER);
  const read = (limit) => weir("GET", `/admin/usage/events?limit=${limit}${after && `&after=${after}`}`);
  const { events, next } = await read(100);
  let count = 0;
  try {
    while (count < events.length && (await told(events[count]))) count++;
  } finally {
    // The cursor is also kept before a failed event: Stripe may forget identifiers after a day, and an outage may last
    // longer.
    if (count > 0) await keep(count === events.length ? next : (await read(count)).next);
  }
}

async function keep(cursor) {
  await writeFile(`${CURSOR_FILE}.new`, cursor);
  await rename(`${CURSOR_FILE}.new`, CURSOR_FILE);
}

server.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on ${PORT}`));
for (;;) {
  await used().catch((error) => console.error(String(error)));
  await sleep(Number(USAGE_INTERVAL));
}
