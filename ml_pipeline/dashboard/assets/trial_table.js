// A sortable table of a study's trials; a trial opens its run.
import { element, sayIfItScrolls, setText } from "./elements.js";
import { duration, number } from "./format.js";

const fixed = [
  { key: "number", label: "Trial", value: (trial) => trial.number, text: String },
  { key: "state", label: "State", value: (trial) => trial.state, text: String },
  { key: "value", label: "Value", value: (trial) => trial.value, text: number, number: true },
  { key: "seconds", label: "Took", value: (trial) => trial.seconds, text: duration, number: true },
];
const dots = { complete: "finished", pruned: "stopped", failed: "failed", impossible: "queued" };

export class TrialTable {
  constructor({ onRun }) {
    this.onRun = onRun;
    this.heading = element("h3", {}, "Trials");
    this.thead = element("thead", {});
    this.tbody = element("tbody", {});
    this.node = element("section", { class: "trials", "aria-label": "Trials", hidden: true }, this.heading,
      ...sayIfItScrolls(element("div", { class: "scroll" }, element("table", { class: "settings" }, this.thead, this.tbody))));
    this.clear();
  }

  clear() {
    this.trials = [];
    this.rows = new Map();
    this.sorting = { key: "number", up: false };
    this.columns = fixed;
    this.headKey = "";
    this.tbody.replaceChildren();
    this.node.hidden = true;
  }

  // found: { trials, settings: names }. Ended trials do not change, so rows are created once.
  show({ trials, settings }, { best, unit }) {
    this.trials = trials;
    const named = fixed.map((column) => (column.key === "value" && unit ? { ...column, label: `Value, ${unit}` } : column));
    this.columns = [...named, ...settings.map((name) => ({ key: `settings ${name}`, label: name, value: (trial) => this.setting(trial, name), text: (value) => value ?? "–" }))];
    this.node.hidden = !trials.length;
    setText(this.heading, `Trials (${trials.length})`);
    const key = JSON.stringify([settings, unit]);
    if (key !== this.headKey) { this.headKey = key; this.rows.clear(); this.drawHead(); }
    for (const trial of trials) if (!this.rows.has(trial.number)) this.rows.set(trial.number, this.makeRow(trial));
    for (const [number, row] of this.rows) row.classList.toggle("best", number === best);
    this.draw();
  }

  setting(trial, name) {
    const value = trial.settings[name];
    return value === undefined ? null : value;
  }

  drawHead() {
    this.thead.replaceChildren(element("tr", {}, ...this.columns.map((column) => element("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": "none", "data-key": column.key },
      element("button", { type: "button", class: "link", onclick: () => this.sort(column) }, column.label)))));
  }

  sort(column) {
    this.sorting = { key: column.key, up: this.sorting.key === column.key ? !this.sorting.up : column.key !== "value" };
    this.draw();
  }

  draw() {
    const { key, up } = this.sorting, column = this.columns.find((each) => each.key === key) || fixed[0];
    for (const head of this.thead.querySelectorAll("th")) head.setAttribute("aria-sort", head.dataset.key === column.key ? (up ? "ascending" : "descending") : "none");
    const sign = up ? 1 : -1;
    const numeric = (value) => (typeof value === "string" && value.trim() !== "" && Number.isFinite(Number(value)) ? Number(value) : value);
    const order = [...this.trials].sort((a, b) => {
      const left = numeric(column.value(a)), right = numeric(column.value(b));
      if (left === null || right === null) return (left === null) - (right === null);
      return (typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true })) * sign;
    });
    const focused = this.tbody.contains(document.activeElement) ? document.activeElement : null;
    const nodes = order.map((trial) => this.rows.get(trial.number));
    if (nodes.length !== this.tbody.childElementCount || nodes.some((node, i) => node !== this.tbody.children[i])) this.tbody.replaceChildren(...nodes);
    focused?.focus();
  }

  makeRow(trial) {
    const cells = this.columns.map((column) => {
      const text = column.text(column.value(trial));
      if (column.key === "number") return element("th", { scope: "row" }, trial.run ? element("button", { type: "button", class: "link", title: `Show ${trial.run}`, onclick: () => this.onRun(trial.run) }, text) : text);
      if (column.key === "state") return element("td", { title: trial.reason }, element("span", { class: "state", "data-state": dots[trial.state] || "unknown" }, text));
      return element("td", { class: column.number ? "number" : "" }, text);
    });
    return element("tr", { "data-trial": String(trial.number) }, ...cells);
  }
}
