// The Worker's entry point.
import { createWeir } from "./weir.mjs";

export { AddressCounter } from "./weir.mjs";

const weir = createWeir();

export default {
  fetch: (request, env, ctx) => weir.handle(request, env, ctx),
};
