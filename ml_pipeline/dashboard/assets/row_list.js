// A list above that of runs: one row for each thing, opened by a click or by keys. Its heirs say what a row shows.
import { byId, element, sayIfItScrolls } from "./elements.js";

export class RowList {
  // id: of the table, whose section is ID-part. headings: [text, classes] of each column. label: of one row's thing.
  constructor(id, headings, { label, onOpen }) {
    Object.assign(this, { id, label, onOpen, items: new Map(), rows: new Map(), current: null });
    this.body = byId(id).tBodies[0];
    const part = byId(`${id}-part`);
    part.after(sayIfItScrolls(part)[1]);
    byId(id).tHead.replaceChildren(element("tr", {}, ...headings.map(([heading, kind]) => element("th", { scope: "col", class: kind }, heading))));
    this.body.addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row) this.onOpen(row.dataset.name); });
    this.body.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const row = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") this.onOpen(row.dataset.name);
    else if (event.key === "ArrowDown") row.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") row.previousElementSibling?.focus();
    else return;
    event.preventDefault();
  }

  update(items) {
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    this.items = new Map(items.map((item) => [item.name, item]));
    for (const name of [...this.rows.keys()]) if (!this.items.has(name)) this.rows.delete(name);
    for (const item of items) this.fill(item);
    const nodes = items.map(({ name }) => this.rows.get(name).node);
    if (nodes.length !== this.body.childElementCount || nodes.some((node, i) => node !== this.body.children[i])) this.body.replaceChildren(...nodes);
    if (focused) this.rows.get(focused)?.node.focus();
    byId(`${this.id}-part`).hidden = !items.length;
    this.mark(this.current);
  }

  fill(item) {
    let row = this.rows.get(item.name);
    if (!row) {
      const cells = this.makeCells(item.name);
      row = { cells, node: element("tr", { tabindex: "0", "data-name": item.name, "aria-current": "false" }, ...cells.columns) };
      this.rows.set(item.name, row);
    }
    row.node.title = item.reason || "";
    row.node.setAttribute("aria-label", `${this.label} ${item.name}, ${item.status}, ${this.fillCells(row.cells, item)}`);
  }

  mark(current) {
    this.current = current;
    for (const [name, { node }] of this.rows) {
      node.classList.toggle("current", name === current);
      node.setAttribute("aria-current", String(name === current));
    }
  }
}
