import { allowanceFor } from "./allowance.ts";
import { developmentToken, type Quota, Refusal, submit, type Usage } from "./api.ts";
import { element, make, makeButton } from "./elements.ts";
import "./jobs.ts";
import { showProblem } from "./notice.ts";
import { onUsage, refreshUsage, signIn, signOut } from "./session.ts";
import { someFiles } from "./source.ts";
import { language, onLanguage, t } from "./text.ts";

const tiers = ["free", "pro", "pro_plus", "enterprise"] as const;
const burst = 50;

const who = element("who", HTMLElement);
const signedOut = element("signed-out", HTMLElement);
const signedIn = element("signed-in", HTMLElement);
const tierButtons = element("tiers", HTMLElement);
const tokenForm = element("token-form", HTMLFormElement);
const tokenInput = element("token", HTMLInputElement);
const hint = element("account-hint", HTMLElement);
const bars = element("quotas", HTMLElement);
const one = element("submit-one", HTMLButtonElement);
const many = element("submit-many", HTMLButtonElement);

let usage: Usage | undefined;

for (const tier of tiers) tierButtons.append(makeButton(t(tier), () => void enter(tier)));
tokenForm.addEventListener("submit", (event) => {
  event.preventDefault();
  void use(tokenInput.value.trim());
});
element("sign-out", HTMLButtonElement).addEventListener("click", signOut);
one.addEventListener("click", () => void submitMany(1));
many.addEventListener("click", () => void submitMany(burst));
onUsage((now) => {
  usage = now;
  show();
});
onLanguage(show);
show();

async function enter(tier: string): Promise<void> {
  try {
    await use(await developmentToken(tier));
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) hint.textContent = t("noSignIn");
    else showProblem(error);
  }
}

async function use(token: string): Promise<void> {
  hint.textContent = "";
  const accepted = await signIn(token).catch(showProblem);
  tokenInput.value = "";
  if (accepted === false) hint.textContent = t("badToken");
}

function show(): void {
  signedOut.hidden = usage !== undefined;
  signedIn.hidden = usage === undefined;
  allowanceFor(usage !== undefined);
  many.textContent = t("submitMany", { n: burst });
  who.textContent = usage ? t("tier", { tier: tierName(usage.tier) }) : t("signedOut");
  bars.replaceChildren(...(usage ? [bar("analysis", usage.analysis), bar("specview", usage.specview)] : []));
}

function tierName(tier: string): string {
  const known = tiers.find((name) => name === tier);
  return known ? t(known) : tier;
}

/** What of a plan is used, reserved and left, in one bar. */
function bar(service: "analysis" | "specview", quota: Quota | null | undefined): HTMLElement {
  const box = make("div", "", "quota");
  if (!quota) return box;
  const { used, reserved, limit, remaining } = quota;
  const number = new Intl.NumberFormat(language);
  const parts = [t("used", { n: number.format(used) }), t("reserved", { n: number.format(reserved) })];
  parts.push(remaining == null ? t("unlimited") : t("left", { n: number.format(remaining) }));
  const date = new Intl.DateTimeFormat(language, { dateStyle: "medium" }).format(new Date(quota.reset_at));
  const head = make("div", "", "quota-head");
  head.append(make("strong", t(service)), make("span", `${parts.join(" · ")} · ${t("until", { date })}`));
  const track = make("div", "", "track");
  for (const [name, amount] of [
    ["used", used],
    ["reserved", reserved],
  ] as const) {
    const part = make("i", "", name);
    part.style.width = `${limit ? Math.min(100, (amount / limit) * 100) : 0}%`;
    track.append(part);
  }
  box.append(head, track);
  return box;
}

async function submitMany(count: number): Promise<void> {
  one.disabled = many.disabled = true;
  hint.textContent = t("submitting");
  const files = someFiles();
  const outcomes = await Promise.allSettled(Array.from({ length: count }, () => submit("analysis", { files })));
  const refusals = outcomes.filter((outcome) => outcome.status === "rejected");
  hint.textContent = t("submitted", { accepted: count - refusals.length, refused: refusals.length });
  one.disabled = many.disabled = false;
  if (refusals[0]) showProblem(refusals[0].reason);
  await refreshUsage().catch(showProblem);
}
