import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import Stripe from "stripe";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";

/** A meter event that Stripe received. */
export interface MeterEvent {
  event_name: string;
  identifier: string;
  value: string;
  customer: string;
}

/** The routes of Stripe that the example calls. It counts an identifier once, as Stripe does. */
export class StripeApi {
  readonly events = new Map<string, MeterEvent>();
  /** The number of times that each usage event was accepted. */
  readonly taken = new Map<string, number>();
  /** The number of calls to answer with a failure from now on, after so many successful ones. */
  failures = 0;
  answers = 0;
  /** The number of new usage events to refuse permanently from now on. */
  refusals = 0;
  /** The number of usage events that were refused because they exist. */
  duplicates = 0;
  /** The metadata of products by id. */
  readonly products = new Map<string, object>([["prod_1", {}]]);
  /** Checkout sessions by payment, and disputes by id. */
  readonly sessions = new Map<string, object>();
  readonly disputes = new Map<string, object>();
  url = "";

  static async start(lifetime: Lifetime): Promise<StripeApi> {
    const api = new StripeApi();
    const server = createServer(async (request, response) => {
      const answer = (status: number, body: unknown): void => {
        response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
      };
      const url = new URL(request.url ?? "/", "http://stripe");
      if (api.failures > 0 && api.answers-- <= 0) {
        api.failures--;
        return answer(500, { error: { type: "api_error", message: "configured to fail" } });
      }
      if (request.method === "POST" && url.pathname === "/v1/billing/meter_events") {
        const form = new URLSearchParams(await text(request));
        const field = (name: string): string => form.get(name) ?? "";
        const identifier = field("identifier");
        // A backend that was killed sends its last events again.
        if (api.refusals > 0 && !api.events.has(identifier)) {
          api.refusals--;
          return answer(400, { error: { type: "invalid_request_error", message: "configured to refuse" } });
        }
        if (api.events.has(identifier)) {
          api.duplicates++;
          const error = { type: "invalid_request_error", code: "duplicate_meter_event", message: "it exists" };
          return answer(400, { error });
        }
        api.taken.set(identifier, (api.taken.get(identifier) ?? 0) + 1);
        api.events.set(identifier, {
          event_name: field("event_name"),
          identifier,
          value: field("payload[value]"),
          customer: field("payload[stripe_customer_id]"),
        });
        return answer(200, { object: "billing.meter_event", identifier });
      }
      const product = /^\/v1\/products\/(\w+)$/.exec(url.pathname)?.[1] ?? "";
      const metadata = api.products.get(product);
      if (request.method === "GET" && metadata) return answer(200, { id: product, object: "product", metadata });
      if (request.method === "GET" && url.pathname === "/v1/checkout/sessions") {
        const session = api.sessions.get(url.searchParams.get("payment_intent") ?? "");
        return answer(200, { object: "list", data: session ? [session] : [], has_more: false });
      }
      const dispute = api.disputes.get(/^\/v1\/disputes\/(\w+)$/.exec(url.pathname)?.[1] ?? "");
      if (request.method === "GET" && dispute) return answer(200, dispute);
      answer(404, { error: { type: "invalid_request_error", message: "no such route" } });
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    whenOver(lifetime, () => {
      server.closeAllConnections();
      server.close();
    });
    api.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    return api;
  }
}

async function text(request: IncomingMessage): Promise<string> {
  return Buffer.concat(await request.toArray()).toString();
}

/** A price as Stripe sends it within a subscription. A price of another product has no lookup key. */
function price(lookup_key: string | null, usage_type: "licensed" | "metered" = "licensed"): object {
  return {
    id: `price_${lookup_key ?? usage_type}`,
    object: "price",
    active: true,
    billing_scheme: "per_unit",
    created: 1_769_817_600,
    currency: "usd",
    custom_unit_amount: null,
    livemode: false,
    lookup_key,
    metadata: {},
    nickname: null,
    product: "prod_1",
    recurring: {
      interval: "month",
      interval_count: 1,
      meter: usage_type === "metered" ? "mtr_1" : null,
      trial_period_days: null,
      usage_type,
    },
    tax_behavior: "unspecified",
    tiers_mode: null,
    transform_quantity: null,
    type: "recurring",
    unit_amount: 2000,
    unit_amount_decimal: "2000",
  };
}

/** A subscription's item. Metered items have no quantity. */
export function subscriptionItem(
  lookup_key: string | null,
  usage_type: "licensed" | "metered" = "licensed",
  /** Members of the price that are different. */
  members: object = {},
): object {
  return {
    id: `si_${lookup_key ?? usage_type}`,
    object: "subscription_item",
    billing_thresholds: null,
    created: 1_769_817_600,
    current_period_end: 1_774_915_200,
    current_period_start: 1_772_236_800,
    discounts: [],
    metadata: {},
    price: { ...price(lookup_key, usage_type), ...members },
    ...(usage_type === "licensed" && { quantity: 1 }),
    subscription: "sub_1",
    tax_rates: [],
  };
}

/** An event of a subscription, as Stripe's API version 2026-10-28 sends it. */
export function subscriptionEvent(
  type: "created" | "updated" | "deleted" | "paused",
  event: { id: string; created: number; subject: string; plan: string; status?: string },
  /** Members of the subscription that are different. */
  members: object = {},
): string {
  return JSON.stringify({
    id: event.id,
    object: "event",
    api_version: "2026-10-28.endive",
    created: event.created,
    livemode: false,
    pending_webhooks: 1,
    request: { id: null, idempotency_key: null },
    type: `customer.subscription.${type}`,
    data: {
      object: {
        id: "sub_1",
        object: "subscription",
        application: null,
        application_fee_percent: null,
        automatic_tax: { disabled_reason: null, enabled: false, liability: null },
        billing_cycle_anchor: 1_769_817_600,
        billing_cycle_anchor_config: null,
        billing_mode: { flexible: null, type: "classic" },
        billing_thresholds: null,
        cancel_at: null,
        cancel_at_period_end: false,
        canceled_at: null,
        cancellation_details: { comment: null, feedback: null, reason: null },
        collection_method: "charge_automatically",
        created: 1_769_817_600,
        currency: "usd",
        customer: "cus_1",
        days_until_due: null,
        default_payment_method: "pm_1",
        default_source: null,
        default_tax_rates: [],
        description: null,
        discounts: [],
        ended_at: null,
        items: {
          object: "list",
          data: [subscriptionItem(event.plan)],
          has_more: false,
          total_count: 1,
          url: "/v1/subscription_items?subscription=sub_1",
        },
        latest_invoice: "in_1",
        livemode: false,
        metadata: { subject: event.subject },
        next_pending_invoice_item_invoice: null,
        on_behalf_of: null,
        pause_collection: null,
        pending_invoice_item_interval: null,
        pending_setup_intent: null,
        pending_update: null,
        schedule: null,
        start_date: 1_769_817_600,
        status: event.status ?? "active",
        test_clock: null,
        transfer_data: null,
        trial_end: null,
        trial_settings: { end_behavior: { missing_payment_method: "create_invoice" } },
        trial_start: null,
        ...members,
      },
    },
  });
}

/** A payment for an amount beyond the plan. */
export function checkoutEvent(
  type: "completed" | "async_payment_succeeded",
  event: { id: string; session: string; subject: string; meter: string; amount: number; payment?: string },
): string {
  return JSON.stringify({
    id: event.id,
    object: "event",
    created: Math.floor(Date.now() / 1000),
    type: `checkout.session.${type}`,
    data: {
      object: {
        id: event.session,
        object: "checkout.session",
        customer: "cus_1",
        mode: "payment",
        payment_status: event.payment ?? "paid",
        metadata: { subject: event.subject, meter: event.meter, amount: String(event.amount) },
      },
    },
  });
}

/** A charge, as Stripe sends it when some of it was refunded. */
export function charge(payment: string, refunded: number): object {
  return {
    id: `ch_${payment}`,
    object: "charge",
    amount: 2000,
    amount_captured: 2000,
    amount_refunded: refunded,
    customer: "cus_1",
    metadata: {},
    payment_intent: payment,
    refunded: refunded === 2000,
    status: "succeeded",
  };
}

/** An event of an object. */
export function stripeEvent(type: string, id: string, object: object): string {
  return JSON.stringify({ id, object: "event", created: Math.floor(Date.now() / 1000), type, data: { object } });
}

/** The header that Stripe signs an event with. */
export function stripeSignature(payload: string, secret: string): string {
  return Stripe.webhooks.generateTestHeaderString({ payload, secret });
}
