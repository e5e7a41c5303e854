import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { servicesWithDemo } from "../../scripts/lib/services.ts";
import { required } from "../harness/lifetime.ts";

const folder = required("WEIR_TEST_FOLDER");

/** The services of `npm start`. The picture's service takes a known time. */
export const servicesOfStart = await servicesWithDemo(folder);

/** The same, with a flood that takes twice as long, so that delays on a busy machine are short in comparison. */
export function servicesOfALongFlood(): string {
  const text = readFileSync(servicesOfStart, "utf8");
  const slower = text.replaceAll("sleep 0.25", "sleep 0.5");
  if (slower === text) throw new Error("the demonstration's services sleep for another time than 0.25 s");
  const path = join(folder, `long-flood-${process.pid}.toml`);
  writeFileSync(path, slower);
  return path;
}
