// Values of a study's trials in the order in which they ended, and the best so far.
import { css, element, setText } from "./elements.js";
import { number } from "./format.js";

const height = 220;

// The values that the chart shows: a few very bad trials do not make all others look alike.
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
    this.node = element("article", { class: "study-chart", role: "img" }, element("div", { class: "chart-head" }, element("h3", {}, "Value of each trial, and the best so far"), this.note, this.at), this.canvas);
    this.rows = [];
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height }));
    this.observer.observe(this.canvas);
  }

  width() { return Math.max(this.canvas.clientWidth, 120); }

  // rows: [number, seconds, value, best] as they ended.
  show(rows) {
    this.rows = rows;
    this.node.hidden = !rows.length;
    const data = [rows.map((_, i) => i + 1), rows.map(([, , value]) => value), rows.map(([, , , best]) => best)];
    const [low, high] = heights(data[1]), below = data[1].filter((value) => value !== null && value < low).length;
    setText(this.note, below ? `${below} below what is shown` : "");
    const last = rows[rows.length - 1];
    this.node.dataset.points = String(rows.length);
    this.node.setAttribute("aria-label", last ? `Values of ${rows.length} finished trials; the best is ${number(last[3])}` : "No trial has finished yet");
    this.range = [low, high];
    if (this.plot) this.plot.setData(data);
    else if (rows.length) this.draw(data);
  }

  draw(data) {
    const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width(), height, padding: [8, 14, 0, 0], legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { time: false, range: (_, low, high) => [0.5, Math.max(high, 2) + 0.5] }, y: { range: () => this.range } },
      axes: [{ ...axis, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 62, values: (_, splits) => splits.map((value) => number(value)) }],
      series: [{},
        { stroke: () => css("--faint"), paths: () => null, points: { show: true, size: 5, width: 1, fill: () => css("--faint") } },
        { stroke: () => css("--c0"), width: 1.8, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
    }, data, this.canvas);
  }

  point(at) {
    const row = this.rows[at];
    setText(this.at, row ? `trial ${row[0]}: ${number(row[2])}, best so far ${number(row[3])}` : "");
  }

  redraw() { this.plot?.redraw(false); }
}
