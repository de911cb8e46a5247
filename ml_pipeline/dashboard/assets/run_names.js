// Displayed names of runs: the readable part and, unless the user chose the name, when the run began. The service's random
// suffix is left out; the title has the full name.
import { element } from "./elements.js";

const began = /-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)(?:-[0-9a-f]{6})?(?=$|\/|-)/;
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// [readable part, when the run began].
export function parts(name) {
  const found = began.exec(name);
  if (!found) return [name, ""];
  const [text, , month, day, ...clock] = found;
  return [name.replace(text, ""), `${Number(day)} ${months[Number(month) - 1] || month} ${clock.slice(0, 3).join(":")}`];
}

export const label = (name) => parts(name).filter(Boolean).join(", ");

// The model of a session: the name of a deployed model, or the run of a checkpoint.
export function modelName(model) {
  const folders = (model || "").split("/"), isFile = /\.(pt|onnx)$/.test(folders[folders.length - 1]);
  return isFile && folders.length > 1 ? folders[folders.length - 2] : model || "";
}

export function nameNode(name, attributes = {}) {
  const [meaning, when] = parts(name);
  return element("span", { title: name, ...attributes, class: `run-name ${attributes.class || ""}` }, meaning, when ? element("span", { class: "when" }, ` ${when}`) : null);
}
