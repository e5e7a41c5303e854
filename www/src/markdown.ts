/**
 * Renders Markdown. Its text comes from names in somebody's files: HTML in it stays text, and links to scripts are
 * dropped.
 */
export async function showMarkdown(place: HTMLElement, markdown: string): Promise<void> {
  // Only those who read a specification need the renderer.
  const { micromark } = await import("micromark");
  place.innerHTML = micromark(markdown);
}
