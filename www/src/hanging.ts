import { onRequest } from "./api.ts";
import { element } from "./elements.ts";
import { placeNear, reveal } from "./messages.ts";
import { t } from "./text.ts";

/** Shows next to the pressed button that a submission has no response yet. */

const patience = 4000;

const place = element("hanging", HTMLElement);
const open = new Set<{ since: number }>();
let timer: ReturnType<typeof setInterval> | undefined;

onRequest(({ method }, settled) => {
  if (method === "GET") return;
  const request = { since: Date.now() };
  if (open.size === 0) placeNear(place, document.activeElement);
  open.add(request);
  timer ??= setInterval(show, 1000);
  void settled.then(() => {
    open.delete(request);
    show();
  });
});

function show(): void {
  const waited = Date.now() - Math.min(...[...open].map((request) => request.since));
  place.hidden = !(open.size > 0 && waited > patience);
  // Written once, so that a screen reader does not read it every second.
  if (place.hidden) place.textContent = "";
  else if (place.textContent === "") {
    place.textContent = t("hanging", { n: Math.floor(waited / 1000) });
    reveal(place);
  }
  if (open.size > 0) return;
  clearInterval(timer);
  timer = undefined;
}
