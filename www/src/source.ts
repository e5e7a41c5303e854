import type { SourceFile } from "./api.ts";
import { element } from "./elements.ts";
import { hideNotice, showProblem } from "./notice.ts";
import { Fault, largestBody } from "./problems.ts";
import { samples } from "./samples.ts";
import { number, onLanguage, t } from "./text.ts";

const path = element("path", HTMLInputElement);
const content = element("content", HTMLTextAreaElement);
const sample = element("sample", HTMLSelectElement);
const picker = element("picker", HTMLInputElement);
const drop = element("drop", HTMLElement);
const list = element("files", HTMLElement);

/** Files in addition to the one in the form, if several were dropped at once. */
let others: SourceFile[] = [];

for (const name of Object.keys(samples)) sample.append(new Option(name));

sample.addEventListener("change", useSample);
picker.addEventListener("change", () => void take(picker.files).catch(showFault));
for (const name of ["dragover", "dragleave", "drop"] as const) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") void take(event.dataTransfer?.files).catch(showFault);
  });
}
onLanguage(showOthers);
// The first job needs one click.
sample.value = "Go";
useSample();

function useSample(): void {
  const chosen = samples[sample.value];
  if (chosen) fill([chosen]);
}

function showFault(error: unknown): void {
  showProblem(error, picker);
}

async function take(files: FileList | null | undefined): Promise<void> {
  hideNotice();
  fill(await Promise.all([...(files ?? [])].map(read)));
  // Reset, so that the same file can be chosen again after a change.
  picker.value = "";
}

async function read(file: File): Promise<SourceFile> {
  const bytes = await file.slice(0, largestBody + 1).arrayBuffer();
  if (bytes.byteLength > largestBody)
    throw new Fault("tooLarge", { limit: largestBody / 1024, size: number(Math.ceil(file.size / 1024)) });
  try {
    return { path: file.name, content: new TextDecoder("utf-8", { fatal: true }).decode(bytes) };
  } catch {
    throw new Fault("notText", { file: file.name });
  }
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

/**
 * The files in the form.
 *
 * Throws a `Fault` for errors that the browser can detect, so that no request is spent on a submission that the server
 * would reject.
 */
export function filesInForm(): SourceFile[] {
  const files = content.value && path.value ? [{ path: path.value, content: content.value }, ...others] : [];
  const encoder = new TextEncoder();
  if (files.length > 500) throw new Fault("manyFiles");
  for (const file of files) {
    if (encoder.encode(file.path).length > 512) throw new Fault("longName");
    if (`${file.path}${file.content}`.includes("\0")) throw new Fault("hasNul", { file: file.path });
  }
  const size = encoder.encode(JSON.stringify({ files })).length;
  if (size > largestBody)
    throw new Fault("tooLarge", { limit: largestBody / 1024, size: number(Math.ceil(size / 1024)) });
  return files;
}

/** The files in the form, or else a sample. */
export function someFiles(): SourceFile[] {
  const files = filesInForm();
  return files.length > 0 ? files : Object.values(samples);
}
