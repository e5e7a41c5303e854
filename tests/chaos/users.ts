import { randomUUID } from "node:crypto";
import { weir } from "../harness/weir.ts";

/** The users of the jobs and their limits. The judge knows them without asking Weir. */
export interface User {
  id: string;
  /** The number of jobs that may run at once, with lent workers. */
  atOnce: number;
  /** The limits of a billing period and of a minute, in jobs; null is unlimited. */
  month: number | null;
  minute: number | null;
}

const plans = [
  { plan: "free", atOnce: 3 },
  { plan: "pro", atOnce: 5 },
  { plan: "free", atOnce: 3 },
  { plan: "enterprise", atOnce: 7 },
];

/** Users of all plans. A third have a limit per month, and a third have a limit per minute. */
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
    const { plan, atOnce } = plans[n % plans.length] ?? { plan: "free", atOnce: 3 };
    const user: User = { id: randomUUID(), atOnce, month: null, minute: null };
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
