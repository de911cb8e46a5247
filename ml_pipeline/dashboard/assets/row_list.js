// Sortable headings for all lists, and the base of the lists of studies and sessions, whose rows open by a click or by
// keys. Subclasses define the content of a row.
import { byId, element, sayIfItScrolls } from "./elements.js";

// Headings of a list. Each is a button that sorts by its column: in one direction, in the other, then in the list's order.
export class Sorting {
  // columns: { label, kind: classes, title, value: of an item, up: true if the first direction is ascending }.
  constructor(head, columns, onChange, ...before) {
    Object.assign(this, { columns, onChange, column: null, isUp: true });
    this.headers = columns.map((column) => element("th", { scope: "col", class: column.kind, "aria-sort": "none", title: column.title },
      element("button", { type: "button", onclick: () => this.sort(column) }, column.label)));
    head.replaceChildren(element("tr", {}, ...before, ...this.headers));
  }

  sort(column) {
    const first = Boolean(column.up);
    if (this.column !== column) Object.assign(this, { column, isUp: first });
    else if (this.isUp === first) this.isUp = !first;
    else this.column = null;
    this.headers.forEach((header, i) => header.setAttribute("aria-sort", this.columns[i] !== this.column ? "none" : this.isUp ? "ascending" : "descending"));
    this.onChange();
  }

  // Items without a value come last.
  sorted(items) {
    if (!this.column) return [...items];
    const { value } = this.column, sign = this.isUp ? 1 : -1;
    return [...items].sort((a, b) => {
      const left = value(a) ?? null, right = value(b) ?? null;
      if (left === null || right === null) return (left === null) - (right === null);
      return (typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right) * sign;
    });
  }
}

export class RowList {
  // id: of the table, whose section is ID-part. columns: see `Sorting`. label: of a row.
  constructor(id, columns, { label, onOpen }) {
    Object.assign(this, { id, label, onOpen, items: new Map(), rows: new Map(), current: null });
    this.body = byId(id).tBodies[0];
    const part = byId(`${id}-part`);
    part.after(sayIfItScrolls(part)[1]);
    this.sorting = new Sorting(byId(id).tHead, columns, () => this.draw());
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
    this.draw();
    if (focused) this.rows.get(focused)?.node.focus();
    byId(`${this.id}-part`).hidden = !items.length;
    this.mark(this.current);
  }

  draw() {
    const nodes = this.sorting.sorted(this.items.values()).map(({ name }) => this.rows.get(name).node);
    if (nodes.length !== this.body.childElementCount || nodes.some((node, i) => node !== this.body.children[i])) this.body.replaceChildren(...nodes);
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
