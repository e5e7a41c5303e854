import { Hono } from "hono";
import { AddressCounter } from "weir-edge";
import { type WeirVariables, weir } from "weir-edge/hono";

export { AddressCounter };

const app = new Hono<{ Variables: WeirVariables }>();
app.use(weir({ anonLimit: 10 }));
app.get("/hello", (c) => c.json({ hello: c.get("caller").user ?? "you" }));
export default app;
