// Stands in for the Worker that OpenNext builds from a Next.js site. It has the same bindings and entry point, a page, a
// route handler, and a form that sets a cookie and redirects.
export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    const visitor = /(?:^|; )visitor=([^;]*)/.exec(request.headers.get("cookie") ?? "")?.[1];
    if (pathname === "/api/hello") return Response.json({ hello: visitor ?? "you" });
    if (pathname === "/login") {
      // Next.js builds the URLs of redirects from this header.
      const location = `https://${request.headers.get("host")}/`;
      const headers = { location, "set-cookie": "visitor=anne; Path=/; HttpOnly" };
      return new Response(null, { status: 303, headers });
    }
    if (pathname !== "/") return env.ASSETS.fetch(request);
    const page = `<!doctype html><script src="/_next/static/main.js"></script><p>Hello ${visitor ? "again" : "there"}`;
    return new Response(page, { headers: { "content-type": "text/html; charset=utf-8" } });
  },
};
