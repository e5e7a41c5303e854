/** Markdown as HTML: HTML in it stays text, and links to scripts are dropped. */
export async function rendered(markdown: string): Promise<string> {
  // Only those who read a specification need the renderer.
  const { micromark } = await import("micromark");
  return micromark(markdown);
}
