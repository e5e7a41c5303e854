import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import Stripe from "stripe";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";

/** A usage event that Stripe received. */
export interface MeterEvent {
  event_name: string;
  identifier: string;
  value: string;
  customer: string;
}

/** The two of Stripe's routes that the example calls. Like Stripe, it counts an identifier once. */
export class StripeApi {
  readonly events = new Map<string, MeterEvent>();
  /** Customers by the subject in their metadata. */
  readonly customers: Map<string, string>;
  /** How often each usage event was accepted. */
  readonly taken = new Map<string, number>();
  /** How many of the next calls fail, after a number of successful ones. */
  failures = 0;
  answers = 0;
  /** How many of the next new usage events are refused permanently. */
  refusals = 0;
  /** How many usage events were refused as duplicates. */
  duplicates = 0;
  /** The number of searches for customers. */
  searches = 0;
  url = "";

  private constructor(customers: Record<string, string>) {
    this.customers = new Map(Object.entries(customers));
  }

  static async start(lifetime: Lifetime, customers: Record<string, string>): Promise<StripeApi> {
    const api = new StripeApi(customers);
    const server = createServer(async (request, response) => {
      const answer = (status: number, body: unknown): void => {
        response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
      };
      const url = new URL(request.url ?? "/", "http://stripe");
      if (api.failures > 0 && api.answers-- <= 0) {
        api.failures--;
        return answer(500, { error: { type: "api_error", message: "failed on request" } });
      }
      if (url.pathname === "/v1/customers/search") {
        const subject = /^metadata\["subject"\]:"(.*)"$/.exec(url.searchParams.get("query") ?? "")?.[1] ?? "";
        const id = api.customers.get(subject);
        api.searches++;
        return answer(200, { object: "search_result", data: id ? [{ object: "customer", id }] : [], has_more: false });
      }
      if (request.method === "POST" && url.pathname === "/v1/billing/meter_events") {
        const form = new URLSearchParams(await text(request));
        const field = (name: string): string => form.get(name) ?? "";
        const identifier = field("identifier");
        // A killed backend repeats its last events.
        if (api.refusals > 0 && !api.events.has(identifier)) {
          api.refusals--;
          return answer(400, { error: { type: "invalid_request_error", message: "refused on request" } });
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

/** An event of a subscription, with the members that the example reads. */
export function subscriptionEvent(
  type: "created" | "updated" | "deleted",
  event: { id: string; created: number; subject: string; plan: string; status?: string },
): string {
  return JSON.stringify({
    id: event.id,
    object: "event",
    api_version: "2026-09-30.clover",
    created: event.created,
    livemode: false,
    pending_webhooks: 1,
    type: `customer.subscription.${type}`,
    data: {
      object: {
        id: "sub_1",
        object: "subscription",
        customer: "cus_1",
        status: event.status ?? "active",
        metadata: { subject: event.subject },
        items: {
          object: "list",
          data: [{ id: "si_1", object: "subscription_item", price: { id: "price_1", lookup_key: event.plan } }],
        },
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
        mode: "payment",
        payment_status: event.payment ?? "paid",
        metadata: { subject: event.subject, meter: event.meter, amount: String(event.amount) },
      },
    },
  });
}

/** The header with Stripe's signature of an event. */
export function stripeSignature(payload: string, secret: string): string {
  return Stripe.webhooks.generateTestHeaderString({ payload, secret });
}
