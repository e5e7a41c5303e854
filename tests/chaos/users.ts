import { randomUUID } from "node:crypto";
import { weir } from "../harness/weir.ts";

/** Whose jobs they are, and what they may: known to the judge without asking Weir. */
export interface User {
  id: string;
  slots: number;
  /** How many jobs a billing period and a minute have room for; null is any number. */
  month: number | null;
  minute: number | null;
}

const plans = [
  { plan: "free", slots: 1 },
  { plan: "pro", slots: 3 },
  { plan: "free", slots: 1 },
  { plan: "enterprise", slots: 5 },
];

/** Users of all plans; a third have the limit of a month, and a third that of a minute. */
export async function makeUsers(
  env: NodeJS.ProcessEnv,
  count: number,
  limits: { month?: number; minute?: number },
): Promise<User[]> {
  const does = async (...args: string[]): Promise<void> => {
    const ran = await weir(["user", ...args], env);
    if (ran.code !== 0) throw new Error(`weir user ${args.join(" ")} ended with ${ran.code}\n${ran.stderr}`);
  };
  const users: User[] = [];
  for (let n = 0; n < count; n++) {
    const { plan, slots } = plans[n % plans.length] ?? { plan: "free", slots: 1 };
    const user: User = { id: randomUUID(), slots, month: null, minute: null };
    await does("plan", user.id, plan);
    const span = ([undefined, "month", "minute"] as const)[n % 3];
    const limit = span && limits[span];
    if (span && limit !== undefined) {
      user[span] = limit;
      await does("override", user.id, "analysis", "--limit", `${span}=${limit}`);
    }
    users.push(user);
  }
  return users;
}
