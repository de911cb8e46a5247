// Values of a study's trials in order of completion, and the best value so far.
import { css, element, setText } from "./elements.js";
import { number } from "./format.js";

const noDots = () => null;

const height = 220;

// The range of values in the chart: without outliers that would compress all others.
export function heights(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return [0, 1];
  const high = sorted[sorted.length - 1], typical = sorted[Math.floor(sorted.length * 0.1)];
  const low = Math.max(sorted[0], typical - 0.5 * (high - typical));
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

export class StudyChart {
  constructor() {
    this.note = element("span", { class: "note" });
    this.at = element("span", { class: "hint", "aria-live": "off" });
    this.canvas = element("div", { class: "canvas" });
    this.keys = element("div", { class: "keys" });
    this.node = element("article", { class: "study-chart", role: "img" }, element("div", { class: "chart-head" }, element("h3", {}, "Value of each trial, and the best so far"), this.note, this.at), this.keys, this.canvas);
    this.rows = [];
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height }));
    this.observer.observe(this.canvas);
  }

  width() { return Math.max(this.canvas.clientWidth, 120); }

  // rows: [number, seconds, value, best] in order of completion. unit: of the values. states: of the trials, by number.
  show(rows, { unit = "", states = new Map() } = {}) {
    this.rows = rows;
    this.unit = unit || "value";
    this.states = states;
    this.node.hidden = !rows.length;
    const values = rows.map(([, , value]) => value), isPruned = rows.map(([which]) => states.get(which) === "pruned");
    const data = [rows.map((_, i) => i + 1), values.map((value, i) => (isPruned[i] ? null : value)), values.map((value, i) => (isPruned[i] ? value : null)), rows.map(([, , , best]) => best)];
    const [low, high] = heights(values), below = values.filter((value) => value !== null && value < low).length;
    const nPruned = isPruned.filter(Boolean).length;
    this.keys.replaceChildren(
      element("span", {}, element("i", { class: "dot" }), "complete ", element("b", {}, String(rows.length - nPruned))),
      element("span", {}, element("i", { class: "dot ring" }), "pruned, at its last value ", element("b", {}, String(nPruned))),
      element("span", {}, element("i", { class: "line" }), "best so far ", element("b", {}, rows.length ? number(rows[rows.length - 1][3]) : "–")));
    setText(this.note, below ? `${below} below the range shown` : "");
    const last = rows[rows.length - 1];
    this.node.dataset.points = String(rows.length);
    this.node.setAttribute("aria-label", last ? `Values of ${rows.length} finished trials; the best is ${number(last[3])}` : "No trial has finished yet");
    this.range = [low, high];
    if (this.plot && this.drawnUnit !== this.unit) { this.plot.destroy(); this.plot = null; }
    if (this.plot) this.plot.setData(data);
    else if (rows.length) this.draw(data);
  }

  draw(data) {
    this.drawnUnit = this.unit;
    const title = (text) => ({ label: text, labelSize: 16, labelGap: 0, labelFont: "11px system-ui, sans-serif" });
    const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width(), height, padding: [8, 14, 0, 0], legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { time: false, range: (_, low, high) => [0.5, Math.max(high, 2) + 0.5] }, y: { range: () => this.range } },
      axes: [{ ...axis, ...title("trials in the order in which they ended"), size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, ...title(this.unit), size: 58, values: (_, splits) => splits.map((value) => number(value)) }],
      series: [{},
        { stroke: () => css("--ink"), paths: noDots, points: { show: true, size: 6, width: 1, fill: () => css("--ink") } },
        { stroke: () => css("--warn"), paths: noDots, points: { show: true, size: 6, width: 1.4, fill: () => css("--paper") } },
        { stroke: () => css("--c0"), width: 1.8, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
    }, data, this.canvas);
  }

  point(at) {
    const row = this.rows[at];
    setText(this.at, row ? `trial ${row[0]}${this.states.has(row[0]) ? `, ${this.states.get(row[0])}` : ""}: ${number(row[2])}, best so far ${number(row[3])}` : "");
  }

  redraw() { this.plot?.redraw(false); }
}
