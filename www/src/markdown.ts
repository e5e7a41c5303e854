import { rendered } from "./rendered.ts";

/** Shows Markdown whose text comes from names in somebody's files. */
export async function showMarkdown(place: HTMLElement, markdown: string): Promise<void> {
  place.innerHTML = await rendered(markdown);
}
