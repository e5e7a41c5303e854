// Cloudflare's own rate-limit binding, as its documentation has it. It counts in each of its locations by itself, and says
// neither how many are left nor until when, so that it does not do the same; it is here to show what it is to be beside.
const denial = JSON.stringify({
  title: "Too Many Requests",
  status: 429,
  detail: "Rate limit exceeded. Please sign in for higher limits or try again later.",
});

export default {
  async fetch(request, env) {
    const { success } = await env.LIMITER.limit({ key: request.headers.get("cf-connecting-ip") });
    if (!success) return new Response(denial, { status: 429, headers: { "content-type": "application/problem+json" } });
    const url = new URL(request.url);
    return fetch(env.ORIGIN_URL + url.pathname + url.search, request);
  },
};
