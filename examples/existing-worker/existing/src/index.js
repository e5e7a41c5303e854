import { verify } from "./verify.js";

export default {
  fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    const headers = { "weir-assertion": request.headers.get("weir-assertion") };
    let claims;
    try {
      claims = verify({ method: request.method, url: pathname + search, headers }, env.EDGE_SECRET);
    } catch (error) {
      return new Response(error.message, { status: 403 });
    }
    return Response.json({ user: claims.sub ?? null, address: claims.client_address });
  },
};
