import { element, make } from "./elements.ts";
import type { Allowance } from "./rate-limit.ts";
import { onLanguage, t } from "./text.ts";

const drops = element("drops", HTMLElement);
const words = element("allowance-text", HTMLElement);

let current: Allowance | undefined;
let signedIn = false;

setInterval(show, 1000);
onLanguage(show);

/** Shows the remaining anonymous submissions, with a countdown to the reset. */
export function showAllowance(allowance: Allowance | undefined): void {
  if (allowance) current = allowance;
  show();
}

export function allowanceFor(user: boolean): void {
  signedIn = user;
  show();
}

function show(): void {
  if (signedIn || !current) {
    drops.replaceChildren();
    words.textContent = t(signedIn ? "allowanceSignedIn" : "allowanceUnknown");
    return;
  }
  const limit = current.limit ?? current.left;
  const seconds = Math.ceil((current.renewsAt - Date.now()) / 1000);
  const left = seconds > 0 ? current.left : limit;
  // More drops would be indistinguishable. The text shows the exact number.
  const shown = Math.min(limit, 20);
  drops.replaceChildren(
    ...Array.from({ length: shown }, (_, n) => make("i", "", n < (left / limit) * shown ? "full" : "")),
  );
  words.textContent = seconds > 0 ? t("allowance", { left, limit, seconds }) : t("allowanceFull", { left, limit });
}
