import { allowanceFor } from "./allowance.ts";
import { developmentToken, Refusal, submit, submitBatch, type Usage } from "./api.ts";
import { openApi } from "./api-document.ts";
import { analysis, demo } from "./demonstration.ts";
import { element, make, makeButton } from "./elements.ts";
import "./jobs.ts";
import type { WindowQuota } from "./generated/api.d.ts";
import { lanes, onLanes } from "./live.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { onUsage, refreshUsage, signIn, signOut } from "./session.ts";
import { someFiles } from "./source.ts";
import { onShown } from "./tabs.ts";
import { day, type Key, meterName, number, onLanguage, planName, t } from "./text.ts";

const burst = 50;

const who = element("who", HTMLElement);
const signedOut = element("signed-out", HTMLElement);
const signedIn = element("signed-in", HTMLElement);
const planButtons = element("tiers", HTMLElement);
const tokenForm = element("token-form", HTMLFormElement);
const tokenInput = element("token", HTMLInputElement);
const hint = element("account-hint", HTMLElement);
const submitHint = element("submit-hint", HTMLElement);
const bars = element("quotas", HTMLElement);
const signInLink = element("to-account", HTMLElement);
const one = element("submit-one", HTMLButtonElement);
const many = element("submit-many", HTMLButtonElement);

let usage: Usage | undefined;
let submitting = false;
/** The plans that this server issues development tokens for. */
let plans: string[] = [];

void openApi()
  .then((document) => {
    plans = document.components?.schemas?.WantedToken?.properties?.plan?.enum ?? [];
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
  planButtons.replaceChildren(...plans.map((plan) => makeButton(planName(plan), () => void enter(plan))));
}

async function enter(plan: string): Promise<void> {
  try {
    await use(await developmentToken(plan));
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) hint.textContent = t("noSignIn");
    else showProblem(error, planButtons);
  }
}

async function use(token: string): Promise<void> {
  clearHints();
  const accepted = await signIn(token).catch((error) => showProblem(error, planButtons));
  tokenInput.value = "";
  if (accepted === false) hint.textContent = t("badToken");
}

function show(): void {
  const goes = usage ? signedOut : signedIn;
  const hadFocus = goes.contains(document.activeElement);
  signedOut.hidden = usage !== undefined;
  signedIn.hidden = usage === undefined;
  // The focused element is hidden now.
  if (hadFocus) (usage ? one : planButtons.querySelector("button"))?.focus();
  allowanceFor(usage !== undefined);
  many.textContent = t("submitMany", { n: left() || burst });
  showSubmitting();
  signInLink.textContent = t(usage ? "tabJobs" : "signIn");
  signInLink.dataset.t = usage ? "tabJobs" : "signIn";
  who.textContent = usage ? t("plan", { plan: planName(usage.plan) }) : t("signedOut");
  const meters = usage?.meters ?? [];
  bars.replaceChildren(
    ...meters.flatMap(({ name, unit, windows }) => windows.map((window) => bar(meterName(name, unit), window))),
  );
}

/** The number of jobs that one click submits: all or none are accepted, so it is at most what the quota allows. */
function left(): number {
  const windows = usage?.meters.find(({ name }) => name === analysis)?.windows ?? [];
  return Math.min(burst, ...windows.map(({ remaining }) => remaining ?? burst));
}

/** Not `disabled`, which would remove the focus from the pressed button. */
function showSubmitting(): void {
  one.ariaDisabled = submitting ? "true" : null;
  many.ariaDisabled = submitting || left() === 0 ? "true" : null;
}

/** The used, reserved and remaining parts of a plan's limit in a window, as one bar. */
function bar(meter: string, { window, used, reserved, limit, remaining, reset_at }: WindowQuota): HTMLElement {
  const box = make("div", "", "quota");
  box.classList.toggle("full", remaining === 0);
  const parts = [t("used", { n: number(used) }), t("reserved", { n: number(reserved) })];
  parts.push(remaining == null ? t("unlimited") : t("left", { n: number(remaining) }));
  const date = day(reset_at, window !== "month");
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
  await submitJobs(1, one, () => submit(analysis, { files: someFiles() }));
}

/** Submits many short jobs, so that some can be seen waiting. */
async function submitMany(): Promise<void> {
  const count = left();
  if (count === 0) return;
  const isSlow = lanes()?.services[demo] !== undefined;
  await submitJobs(count, many, () => {
    const args = isSlow ? {} : { files: someFiles() };
    return submitBatch(isSlow ? demo : analysis, Array(count).fill(args));
  });
}

/** `send` submits `count` jobs, all or none, and may throw a `Fault`. */
async function submitJobs(count: number, button: HTMLElement, send: () => Promise<unknown>): Promise<void> {
  if (submitting) return;
  submitting = true;
  showSubmitting();
  hideNotice();
  submitHint.textContent = t("submitting");
  try {
    await send();
    submitHint.textContent = t("submitted", { accepted: count, refused: 0 });
  } catch (error) {
    submitHint.textContent = error instanceof Refusal ? t("submitted", { accepted: 0, refused: count }) : "";
    showProblem(error, button);
    if (error instanceof Refusal && error.quota) offerLargerPlan();
  } finally {
    submitting = false;
    showSubmitting();
  }
  await refreshUsage().catch((error) => showProblem(error, button));
}

/** Offers a larger plan to a user without remaining quota. */
function offerLargerPlan(): void {
  if (usage?.plan !== "free" || !plans.includes("pro")) return;
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
