// Names of runs as they are shown: what they mean, and if the run was not named by its user, when it began. The random end
// that the service adds is left out; the full name is in the title.
import { element } from "./elements.js";

const began = /-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)(?:-[0-9a-f]{6})?(?=$|\/|-)/;
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// [what it means, when it began].
export function parts(name) {
  const found = began.exec(name);
  if (!found) return [name, ""];
  const [text, , month, day, ...clock] = found;
  return [name.replace(text, ""), `${Number(day)} ${months[Number(month) - 1] || month} ${clock.slice(0, 3).join(":")}`];
}

export const label = (name) => parts(name).filter(Boolean).join(", ");

// The model of a session: the name of a deployed one, or the run whose checkpoint it is.
export function modelName(model) {
  const folders = (model || "").split("/"), isFile = /\.(pt|onnx)$/.test(folders[folders.length - 1]);
  return isFile && folders.length > 1 ? folders[folders.length - 2] : model || "";
}

export function nameNode(name, attributes = {}) {
  const [meaning, when] = parts(name);
  return element("span", { title: name, ...attributes, class: `run-name ${attributes.class || ""}` }, meaning, when ? element("span", { class: "when" }, ` ${when}`) : null);
}
