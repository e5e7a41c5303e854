import type { LaneState, Lanes } from "./api.ts";
import { element, make } from "./elements.ts";
import { History } from "./history.ts";
import { Stream } from "./stream.ts";
import { onLanguage, t } from "./text.ts";

const place = element("lanes", HTMLElement);
const offline = element("offline", HTMLElement);
const history = new History(element("charts", HTMLElement));

const laneNames = ["priority", "default", "scheduled"] as const;
const services = ["analysis", "specview"] as const;

/** Beyond this many, more drops would say no more than the number. */
const dropsShown = 24;
const parkedShown = 60;

interface LaneRow {
  head: HTMLElement;
  waiting: HTMLElement;
  drops: HTMLElement;
  running: HTMLElement;
  workers: HTMLElement;
  oldest: HTMLElement;
}

interface Panel {
  title: HTMLElement;
  headings: HTMLElement[];
  rows: Record<(typeof laneNames)[number], LaneRow>;
  parked: HTMLElement;
  parkedDrops: HTMLElement;
}

const panels = new Map(services.map((service) => [service, makePanel(service)]));
let latest: Lanes | undefined;

relabel();
onLanguage(relabel);

/** Starts to show the lanes as they are, until the page is closed. */
export function watchLanes(): void {
  new Stream("/api/lanes/events", { lanes: show }, (up) => (offline.hidden = up));
}

function makePanel(service: string): Panel {
  const box = make("div", "", "lanes");
  const title = make("h3");
  title.id = `lanes-${service}`;
  const table = make("table", "", "lane-table");
  table.setAttribute("aria-labelledby", title.id);
  const headings = [make("th"), make("th"), make("th"), make("th")];
  for (const heading of headings) heading.scope = "col";
  const top = make("tr");
  top.append(...headings);
  const head = make("thead");
  head.append(top);
  const body = make("tbody");
  const rows = {} as Panel["rows"];
  for (const name of laneNames) {
    const row = {
      head: make("th"),
      waiting: make("span", "0", "number"),
      drops: make("span", "", "drops small"),
      running: make("span", "0", "number"),
      workers: make("span", "", "pool"),
      oldest: make("td", "–", "number"),
    };
    row.head.setAttribute("scope", "row");
    row.drops.setAttribute("aria-hidden", "true");
    row.workers.setAttribute("aria-hidden", "true");
    const waiting = make("td", "", "flow");
    waiting.append(row.drops, row.waiting);
    const running = make("td", "", "flow gate");
    running.append(row.workers, row.running);
    const line = make("tr", "", name);
    line.append(row.head, waiting, running, row.oldest);
    body.append(line);
    rows[name] = row;
  }
  table.append(head, body);
  const parked = make("span");
  const parkedDrops = make("span", "", "drops small");
  parkedDrops.setAttribute("aria-hidden", "true");
  const line = make("p", "", "parked");
  line.append(parked, parkedDrops);
  box.append(title, table, line);
  place.append(box);
  return { title, headings, rows, parked, parkedDrops };
}

function relabel(): void {
  for (const [service, panel] of panels) {
    panel.title.textContent = t(service);
    for (const [n, key] of (["lane", "waiting", "workers", "oldest"] as const).entries()) {
      const heading = panel.headings[n];
      if (heading) heading.textContent = t(key);
    }
    for (const name of laneNames) panel.rows[name].head.textContent = t(name);
  }
  history.relabel();
  if (latest) write(latest);
}

function show(lanes: Lanes): void {
  latest = lanes;
  write(lanes);
  const sum = (lane: (typeof laneNames)[number], what: "queued" | "running"): number =>
    Object.values(lanes.services).reduce((total, service) => total + service[lane][what], 0);
  const parked = Object.values(lanes.services).reduce((total, service) => total + service.parked, 0);
  history.add({
    waiting: [sum("priority", "queued"), sum("default", "queued"), parked],
    running: [sum("priority", "running"), sum("default", "running"), sum("scheduled", "running")],
  });
}

function write(lanes: Lanes): void {
  for (const [name, panel] of panels) {
    const service = lanes.services[name];
    if (!service) continue;
    for (const lane of laneNames) writeLane(panel.rows[lane], service[lane]);
    panel.parked.textContent = t("parked", { parked: service.parked, slots: service.slots_in_use });
    fill(panel.parkedDrops, Math.min(service.parked, parkedShown), service.parked);
  }
}

function writeLane(row: LaneRow, lane: LaneState): void {
  row.waiting.textContent = String(lane.queued);
  fill(row.drops, Math.min(lane.queued, dropsShown), Math.min(lane.queued, dropsShown));
  row.running.textContent = t("ofWorkers", { running: lane.running, workers: lane.workers });
  fill(row.workers, Math.min(lane.workers, dropsShown), lane.running);
  row.oldest.textContent =
    lane.queued === 0 || lane.oldest_wait_ms < 100 ? "–" : t("seconds", { n: (lane.oldest_wait_ms / 1000).toFixed(1) });
}

function fill(box: HTMLElement, count: number, full: number): void {
  while (box.childElementCount > count) box.lastElementChild?.remove();
  while (box.childElementCount < count) box.append(make("i"));
  for (const [n, drop] of [...box.children].entries()) drop.classList.toggle("full", n < full);
}
