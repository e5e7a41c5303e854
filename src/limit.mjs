// The module that only limits: weir-edge/limit.
import * as rust from "../build/limiter/index.js";
import { counterClass, limits } from "./limits.mjs";

export { rateLimitFields, tooManyRequests } from "./limits.mjs";

export const AddressCounter = counterClass(rust, (_, env) => env);

export const { limit, peek, refund, reset, limited } = limits(rust);
