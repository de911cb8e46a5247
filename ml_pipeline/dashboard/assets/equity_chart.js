// The equity of a trading session and of buy and hold over the times of the bars, in UTC.
import { css, element, setText } from "./elements.js";
import { money, signedPercent } from "./format.js";

const height = 240;

export class EquityChart {
  constructor() {
    this.at = element("span", { class: "hint", "aria-live": "off" });
    this.canvas = element("div", { class: "canvas" });
    this.node = element("article", { class: "study-chart", role: "img" }, element("div", { class: "chart-head" }, element("h3", {}, "Equity"), this.at), (this.keys = element("div", { class: "keys" })), this.canvas);
    this.data = [[], [], []];
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height }));
    this.observer.observe(this.canvas);
  }

  width() { return Math.max(this.canvas.clientWidth, 120); }

  // data: [seconds since 1970, equity, equity of buy and hold].
  show(data) {
    this.data = data;
    const [, equity, holding] = data, n = equity.length;
    const key = (kind, name, values) => element("span", {}, element("i", { class: `line ${kind}` }), `${name} `, element("b", {}, `${money(values[n - 1])} (${signedPercent(values[n - 1] / equity[0] - 1)})`));
    const isHeld = n > 0 && holding[n - 1] !== null;
    this.keys.replaceChildren(...(n ? [key("", "session", equity), isHeld ? key("held", "buy and hold, evenly over the symbols, no costs", holding) : ""] : []));
    this.node.hidden = !n;
    this.node.dataset.points = String(n);
    this.node.setAttribute("aria-label", n ? `Equity from ${money(equity[0])} to ${money(equity[n - 1])}` : "No bar yet");
    if (this.plot) this.plot.setData(data);
    else if (n) this.draw(data);
  }

  draw(data) {
    const title = (text) => ({ label: text, labelSize: 16, labelGap: 0, labelFont: "11px system-ui, sans-serif" });
    const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width(), height, padding: [8, 14, 0, 0], legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { drag: { x: true, y: false }, y: false },
      axes: [{ ...axis, ...title("time of the bar, UTC"), size: 36 }, { ...axis, ...title("account currency"), size: 68, values: (_, splits) => splits.map((value) => money(value)) }],
      series: [{}, { stroke: () => css("--c0"), width: 1.6, points: { show: false } }, { stroke: () => css("--faint"), width: 1.4, dash: [5, 3], points: { show: false } }],
      hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
    }, data, this.canvas);
  }

  point(at) {
    const [times, equity, holding] = this.data;
    setText(this.at, times[at] === undefined ? "" : `${new Date(times[at] * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC: ${money(equity[at])}${holding[at] === null ? "" : `, buy and hold ${money(holding[at])}`}`);
  }

  redraw() { this.plot?.redraw(false); }
}
