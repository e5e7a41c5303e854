// Between Stripe and Weir: what was bought goes in, what was used goes out. The README says what Stripe has to know.
import { readFile, rename, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import Stripe from "stripe";

const { STRIPE_KEY, STRIPE_WEBHOOK_SECRET, STRIPE_URL, WEIR_URL, WEIR_KEY } = process.env;
const { PORT = "4242", CURSOR_FILE = "cursor", DEFAULT_PLAN = "free", USAGE_INTERVAL = "10000" } = process.env;
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

async function bought({ id, type, created, data: { object } }) {
  const holder = `/admin/holders/${encodeURIComponent(object.metadata?.subject ?? "")}`;
  if (type.startsWith("customer.subscription.")) {
    const isOver = type.endsWith(".deleted") || ["unpaid", "incomplete", "incomplete_expired"].includes(object.status);
    const plan = isOver ? DEFAULT_PLAN : object.items.data[0].price.lookup_key;
    const occurred_at = new Date(created * 1000).toISOString();
    await weir("PUT", `${holder}/plan`, { plan, event_id: id, occurred_at, effective: "now" });
  } else if (type === "checkout.session.completed" && object.metadata?.amount && object.payment_status === "paid") {
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
  // What is not acknowledged comes again.
  const failed = await bought(event).then(() => undefined, String);
  if (failed) console.error(event.id, failed);
  response.writeHead(failed ? 502 : 204).end();
});

async function used() {
  const after = await readFile(CURSOR_FILE, "utf8").catch(() => "");
  const { events, next } = await weir("GET", `/admin/usage/events?limit=1000${after && `&after=${after}`}`);
  for (const { id, subject, time, data } of events) {
    const value = data.amount - data.from_grants;
    if (value <= 0) continue;
    const found = await stripe.customers.search({ query: `metadata["subject"]:${JSON.stringify(subject)}` });
    const payload = { stripe_customer_id: found.data[0]?.id, value: String(value) };
    const timestamp = Math.floor(Date.parse(time) / 1000);
    // The same identifier again is not counted again. Whoever is no customer has a plan that costs nothing.
    const event = { event_name: data.meter, identifier: id, timestamp, payload };
    if (found.data[0]) await stripe.billing.meterEvents.create(event);
  }
  await writeFile(`${CURSOR_FILE}.new`, next);
  await rename(`${CURSOR_FILE}.new`, CURSOR_FILE);
}

server.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on ${PORT}`));
for (;;) {
  await used().catch((error) => console.error(String(error)));
  await sleep(Number(USAGE_INTERVAL));
}
