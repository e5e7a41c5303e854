// Cloudflare's own rate-limit binding, as its documentation has it. It counts in each of its locations by itself, and says
// neither how many are left nor until when, so that it does not do the same; it is here to show what it is to be beside.
import { denial } from "./denial.mjs";
import forwarder from "./forwarder.mjs";

export default {
  async fetch(request, env) {
    const { success } = await env.LIMITER.limit({ key: request.headers.get("cf-connecting-ip") });
    if (!success) return new Response(denial, { status: 429, headers: { "content-type": "application/problem+json" } });
    return forwarder.fetch(request, env);
  },
};
