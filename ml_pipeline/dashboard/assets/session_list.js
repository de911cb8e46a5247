// The list of trading sessions: model, equity and return.
import { element, setText } from "./elements.js";
import { money, signedPercent } from "./format.js";
import { RowList } from "./row_list.js";
import { label, modelName, nameNode } from "./run_names.js";

const modelOf = (session) => [label(modelName(session.model)), session.version].filter(Boolean).join(" ");
const columns = [
  { label: "Session", kind: "", value: (session) => session.name, up: true },
  { label: "State", kind: "", value: (session) => session.status, up: true },
  { label: "Model", kind: "wide", value: modelOf, up: true },
  { label: "Equity", kind: "number", value: (session) => session.equity },
  { label: "Return", kind: "number", value: (session) => session.simple_return },
];

export class SessionList extends RowList {
  constructor({ onOpen }) { super("sessions", columns, { label: "Session", onOpen }); }

  makeCells(name) {
    const cells = { state: element("span", { class: "state" }), model: element("td", { class: "wide" }), equity: element("td", { class: "number" }), made: element("td", { class: "number" }) };
    cells.columns = [element("td", { class: "name" }, nameNode(name, { class: "title", title: name })), element("td", {}, cells.state), cells.model, cells.equity, cells.made];
    return cells;
  }

  fillCells(cells, session) {
    setText(cells.state, session.status);
    cells.state.dataset.state = session.status;
    setText(cells.model, modelOf(session));
    cells.model.title = session.model || "";
    setText(cells.equity, money(session.equity));
    setText(cells.made, signedPercent(session.simple_return));
    return `equity ${cells.equity.textContent}, ${cells.made.textContent}`;
  }
}
