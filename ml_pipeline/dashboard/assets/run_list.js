// The list of runs, with sorting, a filter, and keyboard navigation.
import { byId, colorOf, element, sayIfItScrolls, setText } from "./elements.js";
import { compact, duration, number, percent, when } from "./format.js";
import { Sorting } from "./row_list.js";
import { nameNode } from "./run_names.js";

const columns = [
  { key: "name", label: "Run", up: true },
  { key: "status", label: "State", up: true, value: (run) => states.indexOf(run.activity) },
  { key: "progress", label: "Progress" },
  { key: "steps_per_second", label: "Steps/s", number: true, narrow: false, title: "Environment steps per second of the last iterations" },
  { key: "seconds_left", label: "Left", up: true, number: true, narrow: false, title: "Time until training ends, at this speed" },
  { key: "last_score", label: "Last score", number: true, narrow: false, title: "Score of the last evaluation, with its unit: mean return, log return or Sharpe ratio" },
  { key: "best_score", label: "Best score", number: true, title: "Best score of an evaluation, with its unit: mean return, log return or Sharpe ratio" },
];
const shown = {
  steps_per_second: compact,
  seconds_left: duration,
  last_score: number,
  best_score: number,
};
const scores = ["last_score", "best_score"];
const states = ["running", "evaluating", "queued", "finished", "stopped", "failed", "broken", "unknown"];

export class RunList {
  constructor({ onOnly, onToggle, emptyText }) {
    this.onOnly = onOnly;
    this.onToggle = onToggle;
    this.emptyText = emptyText;
    this.runs = new Map();
    this.order = [];
    this.rows = new Map();
    this.visible = [];
    this.words = "";
    this.state = null;
    this.withTrials = false; // trials of studies are hidden
    this.focused = null;
    this.chosen = new Map();
    this.current = null;
    this.body = byId("runs").tBodies[0];
    this.sorting = new Sorting(byId("runs").tHead, columns.map((column) => ({
      value: (run) => run[column.key], ...column, kind: `${column.number ? "number" : ""} ${column.key} ${column.narrow === false ? "wide" : ""}`,
    })), () => this.draw(), element("th", { class: "box" }, element("span", { class: "hidden" }, "Shown")));
    this.listen();
    const list = byId("runs").parentNode;
    list.after(sayIfItScrolls(list)[1]);
  }

  listen() {
    const filter = byId("filter");
    filter.addEventListener("input", () => { this.words = filter.value.toLowerCase().trim(); this.draw(); });
    filter.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { filter.value = this.words = ""; this.draw(); this.focus(this.focused); event.preventDefault(); event.stopPropagation(); }
      if (event.key === "ArrowDown" || event.key === "Enter") { this.focus(this.visible[0]); event.preventDefault(); }
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input:not([type=range]):not([type=checkbox]), textarea, select");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { filter.focus(); filter.select(); event.preventDefault(); }
    });
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (!row) return;
      this.focused = row.dataset.run;
      if (event.target.closest("td.box") || event.ctrlKey || event.metaKey || event.shiftKey) this.onToggle(row.dataset.run);
      else this.onOnly(row.dataset.run);
      this.mark();
    });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("focusin", (event) => {
      const row = event.target.closest("tr");
      if (row) { this.focused = row.dataset.run; this.mark(); }
    });
  }

  key(event) {
    const at = this.visible.indexOf(this.focused), last = this.visible.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to !== undefined) {
      this.focus(this.visible[Math.min(Math.max(to, 0), last)]);
      event.preventDefault();
    } else if (event.key === "Enter") {
      this.onOnly(this.focused);
      event.preventDefault();
    } else if (event.key === " ") {
      this.onToggle(this.focused);
      event.preventDefault();
    }
  }

  focus(name) {
    const row = this.rows.get(name);
    if (row) { this.focused = name; this.mark(); row.node.focus(); }
  }

  // Apply an update: changed runs, removed names, and the new order if it changed.
  update({ runs, removed, order }) {
    for (const run of runs) this.runs.set(run.name, run);
    for (const name of removed) this.runs.delete(name);
    if (order) {
      const known = new Set(order);
      for (const name of this.runs.keys()) if (!known.has(name)) this.runs.delete(name);
      this.order = order;
    }
    for (const run of runs) this.fill(run);
    this.draw();
  }

  choose(chosen, current) {
    this.chosen = chosen;
    this.current = current;
    if (!this.focused || !this.runs.has(this.focused)) this.focused = current;
    this.draw();
  }

  fill(run) {
    let row = this.rows.get(run.name);
    if (!row) this.rows.set(run.name, (row = this.makeRow(run.name)));
    const { cells } = row;
    cells.name.title = [run.name, run.task].filter(Boolean).join("\n");
    const trouble = ["failed", "broken", "queued"].includes(run.status) && run.headline ? run.headline : "";
    setText(cells.reason, trouble);
    cells.reason.classList.toggle("bad", run.status !== "queued");
    cells.reason.hidden = !trouble;
    cells.reason.title = trouble;
    setText(cells.status, run.activity);
    cells.status.dataset.state = run.activity;
    cells.statusCell.title = [run.reason, run.began && `Began ${when(run.began)}`, run.ended && `Ended ${when(run.ended)}`].filter(Boolean).join("\n");
    const share = run.progress;
    cells.bar.style.width = `${Math.max(0, Math.min(share || 0, 1)) * 100}%`;
    setText(cells.share, percent(share));
    cells.progress.title = run.global_step === null ? "" : `${run.global_step.toLocaleString("en")} of ${run.total_timesteps === null ? "?" : run.total_timesteps.toLocaleString("en")} steps`;
    for (const key of Object.keys(shown)) setText(cells[key].firstChild, shown[key](run[key]));
    for (const key of scores) setText(cells[key].lastChild, run[key] === null ? "" : run.score_unit || "");
  }

  makeRow(name) {
    const cells = {};
    const box = element("input", { type: "checkbox", tabindex: "-1", "aria-label": `Show ${name} with the others` });
    cells.title = nameNode(name, { class: "title" });
    cells.reason = element("span", { class: "reason" });
    cells.name = element("td", { class: "name" }, cells.title, cells.reason);
    cells.status = element("span", { class: "state" });
    cells.statusCell = element("td", { class: "status" }, cells.status);
    cells.bar = element("i", { class: "fill" });
    cells.share = element("span", { class: "share" });
    cells.progress = element("td", { class: "progress" }, element("span", { class: "track", "aria-hidden": "true" }, cells.bar), cells.share);
    for (const column of columns) if (shown[column.key]) cells[column.key] = element("td", { class: `number ${column.narrow === false ? "wide" : ""}` }, element("span", {}), scores.includes(column.key) ? element("small", { class: "unit" }) : null);
    const node = element("tr", { role: "row", tabindex: "-1", "aria-selected": "false", "data-run": name },
      element("td", { class: "box" }, box), cells.name, cells.statusCell, cells.progress, ...Object.keys(shown).map((key) => cells[key]));
    return { node, cells, box };
  }

  matches(run) {
    const text = `${run.name} ${run.task} ${run.activity} ${run.status} ${run.algorithm} ${run.reason || ""}`.toLowerCase();
    return this.words.split(/\s+/).every((word) => text.includes(word));
  }

  draw() {
    const place = new Map(this.order.map((name, i) => [name, i]));
    const trials = [...this.runs.values()].filter((run) => run.study), nTrials = trials.length;
    let runs = [...this.runs.values()].filter((run) => this.withTrials || !run.study || this.chosen.has(run.name));
    if (this.state && !runs.some((run) => run.activity === this.state)) this.state = null;
    runs = runs.filter((run) => this.matches(run));
    this.drawStates(runs, nTrials ? trials.filter((run) => this.matches(run)).length : null);
    runs = runs.filter((run) => !this.state || run.activity === this.state);
    runs = this.sorting.sorted(runs.sort((a, b) => place.get(a.name) - place.get(b.name)));
    const names = runs.map((run) => run.name);
    if (names.join("\n") !== this.visible.join("\n") || this.body.childElementCount !== names.length) {
      const had = this.body.contains(document.activeElement);
      this.visible = names;
      this.body.replaceChildren(...names.map((name) => this.rows.get(name).node));
      if (had) this.focus(names.includes(this.focused) ? this.focused : names[0]);
    }
    for (const name of [...this.rows.keys()]) if (!this.runs.has(name)) this.rows.delete(name);
    const empty = byId("no-runs");
    empty.hidden = names.length > 0;
    setText(empty, this.runs.size ? this.words || this.state || !nTrials ? "No run matches the filter." : "All runs here are trials of studies: open a study, or list its trials." : this.emptyText);
    byId("runs").hidden = !this.runs.size;
    this.mark();
  }

  // runs: the runs that match the filter, which the numbers count. nTrials: matching trials; null if there are no trials.
  drawStates(runs, nTrials) {
    const counts = new Map(this.state ? [[this.state, 0]] : []);
    for (const run of runs) counts.set(run.activity, (counts.get(run.activity) || 0) + 1);
    const parts = [[null, "all", runs.length], ...states.filter((state) => counts.has(state)).map((state) => [state, state, counts.get(state)])];
    const key = JSON.stringify([parts, this.state, nTrials, this.withTrials]);
    if (key === this.statesKey) return;
    this.statesKey = key;
    const had = byId("states").contains(document.activeElement) && document.activeElement.dataset.state;
    byId("states").replaceChildren(...(runs.length || this.words ? parts : []).map(([state, label, count]) => element("button", {
      type: "button", class: "chip", "aria-pressed": String(this.state === state), "data-state": state || "all",
      onclick: () => { this.state = this.state === state ? null : state; this.draw(); },
    }, label, element("b", {}, String(count)))), ...(nTrials !== null ? [element("button", {
      type: "button", class: "chip", "aria-pressed": String(this.withTrials), "data-state": "trials", title: "List the trials of studies among the runs",
      onclick: () => { this.withTrials = !this.withTrials; this.draw(); },
    }, "trials", element("b", {}, String(nTrials)))] : []));
    if (had) byId("states").querySelector(`[data-state="${had}"]`)?.focus();
  }

  mark() {
    const focusable = this.visible.includes(this.focused) ? this.focused : this.visible[0];
    for (const [name, { node, box }] of this.rows) {
      const slot = this.chosen.get(name);
      node.tabIndex = name === focusable ? 0 : -1;
      node.setAttribute("aria-selected", String(slot !== undefined));
      node.classList.toggle("current", name === this.current);
      box.checked = slot !== undefined;
      box.style.accentColor = slot === undefined ? "" : colorOf(slot);
    }
  }
}
