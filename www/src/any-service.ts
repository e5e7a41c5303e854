import { analysis } from "./demonstration.ts";
import { element, make } from "./elements.ts";
import { lanes, onLanes } from "./live.ts";
import { Fault } from "./problems.ts";
import { serviceName, t } from "./text.ts";
import { run } from "./try.ts";

/** Submits jobs of any service with arguments that the visitor enters, if the catalogue has no analysis. */

const ours = element("form", HTMLFormElement);
const form = element("any-form", HTMLFormElement);
const service = element("any-service", HTMLSelectElement);
const args = element("any-arguments", HTMLTextAreaElement);
const send = element("any-submit", HTMLButtonElement);

onLanes(({ services }) => {
  if (services[analysis] || !ours.isConnected) return;
  ours.remove();
  form.hidden = false;
  for (const [id, key] of [
    ["try-title", "anyTitle"],
    ["result-title", "anyResult"],
  ] as const) {
    const title = element(id, HTMLElement);
    title.dataset.t = key;
    title.textContent = t(key);
  }
  service.replaceChildren(
    ...Object.keys(lanes()?.services ?? services).map((name) => {
      const option = make("option", serviceName(name));
      option.value = name;
      return option;
    }),
  );
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run(send, service.value, () => parsed(args.value));
});

function parsed(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch {
    // The error is thrown below.
  }
  throw new Fault("notObject");
}
