// The equity of a trading session over the times of its bars, in UTC.
import { css, element, setText } from "./elements.js";
import { number } from "./format.js";

const height = 240;

export class EquityChart {
  constructor() {
    this.at = element("span", { class: "hint", "aria-live": "off" });
    this.canvas = element("div", { class: "canvas" });
    this.node = element("article", { class: "study-chart", role: "img" }, element("div", { class: "chart-head" }, element("h3", {}, "Equity"), this.at), this.canvas);
    this.data = [[], []];
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height }));
    this.observer.observe(this.canvas);
  }

  width() { return Math.max(this.canvas.clientWidth, 120); }

  // data: [seconds since 1970, equity at them].
  show(data) {
    this.data = data;
    const [, equity] = data, n = equity.length;
    this.node.hidden = !n;
    this.node.dataset.points = String(n);
    this.node.setAttribute("aria-label", n ? `Equity from ${number(equity[0], 7)} to ${number(equity[n - 1], 7)}` : "No bar yet");
    if (this.plot) this.plot.setData(data);
    else if (n) this.draw(data);
  }

  draw(data) {
    const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width(), height, padding: [8, 14, 0, 0], legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { drag: { x: true, y: false }, y: false },
      axes: [{ ...axis, size: 36 }, { ...axis, size: 72, values: (_, splits) => splits.map((value) => number(value, 7)) }],
      series: [{}, { stroke: () => css("--c0"), width: 1.6, points: { show: false } }],
      hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
    }, data, this.canvas);
  }

  point(at) {
    const [times, equity] = this.data;
    setText(this.at, times[at] === undefined ? "" : `${new Date(times[at] * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC: ${number(equity[at], 8)}`);
  }

  redraw() { this.plot?.redraw(false); }
}
