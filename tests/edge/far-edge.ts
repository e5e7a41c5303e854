// An edge in its own process and workerd. With a name, it uses the counting objects of the edge that started it.
import type { V4WorkerOptions } from "miniflare";
import { type EdgeOptions, edgeName, startEdge } from "./workerd.ts";

process.once("message", async (options: EdgeOptions & { name?: string }) => {
  const ends: (() => Promise<void> | void)[] = [];
  const worker = {
    name: `${edgeName}-${options.name}`,
    durableObjects: { ADDRESS_COUNTERS: { className: "AddressCounter", scriptName: edgeName, useSQLite: true } },
  } as Partial<V4WorkerOptions>;
  const edge = await startEdge(
    { after: (end) => void ends.push(end) },
    { ...options, ...(options.name ? { worker } : {}) },
  );
  process.send?.(edge.url);
  process.once("disconnect", async () => {
    for (const end of ends) await end();
    process.exit();
  });
});
