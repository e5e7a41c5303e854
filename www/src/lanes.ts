import type { LaneState, Lanes } from "./api.ts";
import { element, make } from "./elements.ts";
import { onLanes } from "./live.ts";
import { language, onLanguage, serviceName, t } from "./text.ts";

/** All jobs, with a row for each of the server's services. */

const body = element("services", HTMLElement);
let latest: Lanes | undefined;

onLanes((lanes) => {
  latest = lanes;
  show();
});
onLanguage(show);

function show(): void {
  const services = Object.entries(latest?.services ?? {});
  const number = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
  const rows = services.map(([name, service]) => {
    const lanes: LaneState[] = [service.priority, service.default, service.scheduled];
    const sum = (what: "queued" | "running" | "workers"): number =>
      lanes.reduce((total, lane) => total + lane[what], 0);
    const [running, workers] = [sum("running"), sum("workers")];
    const oldest = Math.max(...lanes.map((lane) => (lane.queued > 0 ? lane.oldest_wait_ms : 0)));
    const cells = [
      number.format(service.parked),
      number.format(sum("queued")),
      // The number of workers of other programs is unknown to the server.
      service.external || running > workers ? number.format(running) : t("ofWorkers", { running, workers }),
      oldest < 100 ? "–" : t("seconds", { n: number.format(oldest / 1000) }),
    ];
    const row = make("tr");
    const head = make("th", serviceName(name));
    head.scope = "row";
    row.append(head, ...cells.map((words) => make("td", words)));
    return row;
  });
  body.replaceChildren(...rows);
}
