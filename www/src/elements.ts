/** The element of index.html with this id. */
export function element<E extends HTMLElement>(id: string, kind: new () => E): E {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`index.html has no ${kind.name} #${id}`);
  return found;
}

/** A new element with a class and text. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  text = "",
  className = "",
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (className) made.className = className;
  return made;
}

export function makeButton(text: string, onClick: () => void, className = ""): HTMLButtonElement {
  const button = make("button", text, className);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}
