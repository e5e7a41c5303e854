/** The edge's response to a client over its limit. */
export const denial = JSON.stringify({
  title: "Too Many Requests",
  status: 429,
  detail: "Rate limit exceeded. Please sign in for higher limits or try again later.",
});
