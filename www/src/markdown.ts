import { rendered } from "./rendered.ts";

/** Shows Markdown that contains names from a visitor's files. */
export async function showMarkdown(place: HTMLElement, markdown: string): Promise<void> {
  place.innerHTML = await rendered(markdown);
}
