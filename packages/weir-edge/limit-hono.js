// Middleware of Hono that only limits, without the rest of the edge.
import { limitWith } from "./hono-limit.js";
import { limited } from "./limit.js";

/** Middleware: `app.use(limit({ key: (c) => c.get("user"), limit: 60, window: 60 }))`. */
export const limit = limitWith(limited);
