import { allowanceFor } from "./allowance.ts";
import { developmentToken, Refusal, submit, type Usage } from "./api.ts";
import { openApi } from "./api-document.ts";
import { analysis, demo } from "./demonstration.ts";
import { element, make, makeButton } from "./elements.ts";
import "./jobs.ts";
import type { WindowQuota } from "./generated/api.d.ts";
import { lanes, onLanes } from "./live.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { Pool } from "./pool.ts";
import { onUsage, refreshUsage, signIn, signOut } from "./session.ts";
import { someFiles } from "./source.ts";
import { onShown } from "./tabs.ts";
import { type Key, language, meterName, onLanguage, planName, t } from "./text.ts";

const burst = 50;
/** Of a browser's six connections to a server. The others read the quota or stream events at the same time. */
const submitters = 3;

const who = element("who", HTMLElement);
const signedOut = element("signed-out", HTMLElement);
const signedIn = element("signed-in", HTMLElement);
const tierButtons = element("tiers", HTMLElement);
const tokenForm = element("token-form", HTMLFormElement);
const tokenInput = element("token", HTMLInputElement);
const hint = element("account-hint", HTMLElement);
const submitHint = element("submit-hint", HTMLElement);
const bars = element("quotas", HTMLElement);
const signInLink = element("to-account", HTMLElement);
const one = element("submit-one", HTMLButtonElement);
const many = element("submit-many", HTMLButtonElement);

let usage: Usage | undefined;
/** The plans that this server issues development tokens for. */
let plans: string[] = [];

void openApi()
  .then((document) => {
    plans = document.components?.schemas?.WantedToken?.properties?.tier?.enum ?? [];
    showPlans();
  })
  // The top of the page shows that the server is unavailable.
  .catch(() => {});
tokenForm.addEventListener("submit", (event) => {
  event.preventDefault();
  void use(tokenInput.value.trim());
});
element("sign-out", HTMLButtonElement).addEventListener("click", () => {
  signOut();
  clearHints();
});
one.addEventListener("click", () => void submitFiles());
many.addEventListener("click", () => void submitMany());
onShown("account", clearHints);
onUsage((now) => {
  usage = now;
  show();
});
// The catalogue of another product has no analyses to submit.
onLanes(({ services }) => {
  one.hidden = many.hidden = !services[analysis];
});
onLanguage(() => {
  showPlans();
  show();
});
show();

function clearHints(): void {
  hint.textContent = submitHint.textContent = "";
}

function showPlans(): void {
  tierButtons.replaceChildren(...plans.map((plan) => makeButton(planName(plan), () => void enter(plan))));
}

async function enter(tier: string): Promise<void> {
  try {
    await use(await developmentToken(tier));
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) hint.textContent = t("noSignIn");
    else showProblem(error, tierButtons);
  }
}

async function use(token: string): Promise<void> {
  clearHints();
  const accepted = await signIn(token).catch((error) => showProblem(error, tierButtons));
  tokenInput.value = "";
  if (accepted === false) hint.textContent = t("badToken");
}

function show(): void {
  const goes = usage ? signedOut : signedIn;
  const hadFocus = goes.contains(document.activeElement);
  signedOut.hidden = usage !== undefined;
  signedIn.hidden = usage === undefined;
  // The focused element is hidden now.
  if (hadFocus) (usage ? one : tierButtons.querySelector("button"))?.focus();
  allowanceFor(usage !== undefined);
  many.textContent = t("submitMany", { n: burst });
  signInLink.textContent = t(usage ? "tabJobs" : "signIn");
  signInLink.dataset.t = usage ? "tabJobs" : "signIn";
  who.textContent = usage ? t("tier", { tier: planName(usage.tier) }) : t("signedOut");
  const meters = usage?.meters ?? [];
  bars.replaceChildren(
    ...meters.flatMap(({ name, unit, windows }) => windows.map((window) => bar(meterName(name, unit), window))),
  );
}

/** The used, reserved and remaining parts of a plan's limit in a window, as one bar. */
function bar(meter: string, { window, used, reserved, limit, remaining, reset_at }: WindowQuota): HTMLElement {
  const box = make("div", "", "quota");
  const number = new Intl.NumberFormat(language);
  const parts = [t("used", { n: number.format(used) }), t("reserved", { n: number.format(reserved) })];
  parts.push(remaining == null ? t("unlimited") : t("left", { n: number.format(remaining) }));
  const style = window === "month" ? { dateStyle: "medium" } : { dateStyle: "short", timeStyle: "short" };
  const date = new Intl.DateTimeFormat(language, style as Intl.DateTimeFormatOptions).format(new Date(reset_at));
  const name = window === "month" ? meter : `${meter} (${t(`per.${window}` as Key)})`;
  const head = make("div", "", "quota-head");
  head.append(make("strong", name), make("span", `${parts.join(" · ")} · ${t("until", { date })}`));
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

/** Submits the files in the form, or a sample. */
async function submitFiles(): Promise<void> {
  await submitEach(1, analysis, () => ({ files: someFiles() }), one);
}

/** Submits many short jobs, so that some can be seen waiting. */
async function submitMany(): Promise<void> {
  const isSlow = lanes()?.services[demo] !== undefined;
  await submitEach(burst, isSlow ? demo : analysis, () => (isSlow ? {} : { files: someFiles() }), many);
}

/** `args` may throw a `Fault`. */
async function submitEach(count: number, service: string, args: () => unknown, button: HTMLElement): Promise<void> {
  if (one.ariaDisabled) return;
  // Not `disabled`, which would remove the focus from the pressed button.
  one.ariaDisabled = many.ariaDisabled = "true";
  hideNotice();
  const refusals: unknown[] = [];
  try {
    submitHint.textContent = t("submitting");
    const each = args();
    const submitOne = async (): Promise<void> => {
      await submit(service, each).catch((error) => refusals.push(error));
      void refreshUsage().catch(() => {});
    };
    await new Pool(submitters).all(Array.from({ length: count }, () => submitOne));
    submitHint.textContent = t("submitted", { accepted: count - refusals.length, refused: refusals.length });
  } catch (error) {
    submitHint.textContent = "";
    refusals.push(error);
  } finally {
    one.ariaDisabled = many.ariaDisabled = null;
  }
  const [refused] = refusals;
  if (refused) {
    showProblem(refused, button);
    if (refused instanceof Refusal && refused.quota) offerLargerPlan();
  }
  await refreshUsage().catch((error) => showProblem(error, button));
}

/** Offers a larger plan to a user without remaining quota. */
function offerLargerPlan(): void {
  if (usage?.tier !== "free" || !plans.includes("pro")) return;
  const label = t("signInAsPlan", { plan: planName("pro") });
  element("notice-text", HTMLElement).append(makeButton(label, () => void signInInstead("pro"), "small"));
}

/** Hides the previous user's jobs and quota before the next user's arrive. */
async function signInInstead(plan: string): Promise<void> {
  try {
    const token = await developmentToken(plan);
    hideNotice();
    signOut();
    await use(token);
  } catch (error) {
    showProblem(error, many);
  }
}
