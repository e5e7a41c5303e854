/** Puts a message next to the control that caused it, or at the top of the tab in view. */
export function placeNear(message: HTMLElement, cause: Element | null | undefined): void {
  const list = cause?.closest(".scroll");
  const row = cause?.closest(".row");
  const head = document.querySelector("[role=tabpanel]:not([hidden]) > :first-child");
  if (list) list.before(message);
  else if (row) row.after(message);
  else head?.after(message);
}

/** Scrolls by the minimum distance. */
export function reveal(message: HTMLElement): void {
  message.scrollIntoView({ block: "nearest" });
}
