// Names of runs where there is little room: cut in their middle, so that what they differ by stays.
import { element } from "./elements.js";

// Without the time in a name that the service made: "CartPole-v1-seed0-20260101-120000-6b2882".
export const shortName = (name) => name.replace(/-\d{8}-\d{6}-(?=[0-9a-f]{6}$)/, "…");

// [what may be cut, what stays]: from the last word on, if that is short.
export function parts(name) {
  const short = shortName(name), mark = short.indexOf("…");
  if (short.length <= 12) return ["", short];
  const at = Math.max(...["-", "_", "/"].map((sign) => short.lastIndexOf(sign, mark < 0 ? short.length : mark)));
  const from = at > 0 && short.length - at <= 16 ? at : short.length - 8;
  return [short.slice(0, from), short.slice(from)];
}

export function nameNode(name, attributes = {}) {
  const [head, tail] = parts(name);
  return element("span", { ...attributes, class: `cut ${attributes.class || ""}` }, element("span", { class: "cut-head" }, head), element("span", { class: "cut-tail" }, tail));
}
