/** Markdown as HTML: HTML in it stays text, and links to scripts are dropped. */
export async function rendered(markdown: string): Promise<string> {
  // Loaded on demand, because only readers of a specification need the renderer.
  const { micromark } = await import("micromark");
  return micromark(markdown);
}
