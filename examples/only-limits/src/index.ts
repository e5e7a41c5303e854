import { AddressCounter, limited } from "weir-edge/limit";

export { AddressCounter };

const key = (request: Request) => request.headers.get("x-api-key");

export default {
  fetch: limited({ key, limit: 60, window: 60, name: "api" }, async (request: Request) => {
    return Response.json({ path: new URL(request.url).pathname });
  }),
};
