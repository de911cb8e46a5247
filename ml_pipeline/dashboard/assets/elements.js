// Elements of the page. Texts from files become text nodes and attributes, never markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Colors of selected runs; after the last one, the same colors again with dashed lines.
export const nColors = 10;
export const colorOf = (slot) => `var(--c${slot % nColors})`;
export const strokeOf = (slot) => css(`--c${slot % nColors}`);

// A scrollable node, and a hint below it as long as there is more content beyond its edges.
export function sayIfItScrolls(node) {
  const hint = element("p", { class: "hint scroll-hint", hidden: true });
  const look = () => {
    const right = node.scrollWidth - node.clientWidth - node.scrollLeft > 8, below = node.scrollHeight - node.clientHeight - node.scrollTop > 8;
    hint.hidden = !right && !below;
    setText(hint, [right ? "More columns to the right: scroll sideways →" : "", below ? "More rows below: scroll down ↓" : ""].filter(Boolean).join("  "));
  };
  new ResizeObserver(look).observe(node);
  new MutationObserver(look).observe(node, { childList: true, subtree: true, characterData: true });
  node.addEventListener("scroll", look, { passive: true });
  return [node, hint];
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function stored(name, otherwise) {
  try {
    const text = localStorage.getItem(`ml-pipeline ${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function store(name, value) {
  try {
    localStorage.setItem(`ml-pipeline ${name}`, JSON.stringify(value));
  } catch { /* storage is switched off: the choice lasts as long as the page */ }
}
