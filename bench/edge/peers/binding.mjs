// Cloudflare's rate-limit binding, as in its documentation. It counts separately in each location, and reports neither
// the remaining requests nor the reset time. So it does less than Weir, and only serves as a lower bound.
import { denial } from "./denial.mjs";
import forwarder from "./forwarder.mjs";

export default {
  async fetch(request, env) {
    const { success } = await env.LIMITER.limit({ key: request.headers.get("cf-connecting-ip") });
    if (!success) return new Response(denial, { status: 429, headers: { "content-type": "application/problem+json" } });
    return forwarder.fetch(request, env);
  },
};
