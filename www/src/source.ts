import type { SourceFile } from "./api.ts";
import { element } from "./elements.ts";
import { samples } from "./samples.ts";
import { onLanguage, t } from "./text.ts";

const path = element("path", HTMLInputElement);
const content = element("content", HTMLTextAreaElement);
const sample = element("sample", HTMLSelectElement);
const picker = element("picker", HTMLInputElement);
const drop = element("drop", HTMLElement);
const list = element("files", HTMLElement);

/** Files beside the one in the form, when several were dropped at once. */
let others: SourceFile[] = [];

for (const name of Object.keys(samples)) sample.append(new Option(name));

sample.addEventListener("change", () => {
  const chosen = samples[sample.value];
  if (chosen) fill([chosen]);
});
picker.addEventListener("change", () => void take(picker.files));
for (const name of ["dragover", "dragleave", "drop"] as const) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") void take(event.dataTransfer?.files);
  });
}
onLanguage(showOthers);

async function take(files: FileList | null | undefined): Promise<void> {
  fill(await Promise.all([...(files ?? [])].map(async (file) => ({ path: file.name, content: await file.text() }))));
}

function fill(files: SourceFile[]): void {
  const [first, ...rest] = files;
  if (!first) return;
  path.value = first.path;
  content.value = first.content;
  others = rest;
  showOthers();
}

function showOthers(): void {
  list.hidden = others.length === 0;
  list.textContent = t("alsoFiles", { files: others.map((file) => file.path).join(", ") });
}

/** What is in the form. */
export function filesInForm(): SourceFile[] {
  return content.value && path.value ? [{ path: path.value, content: content.value }, ...others] : [];
}

/** What is in the form, or else a sample. */
export function someFiles(): SourceFile[] {
  const files = filesInForm();
  return files.length > 0 ? files : Object.values(samples);
}
