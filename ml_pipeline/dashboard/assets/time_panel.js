// Time per stage: one bar per run, and the shares of the current run over its iterations.
import { css, element } from "./elements.js";
import { duration, marks, percent } from "./format.js";
import { label, nameNode } from "./run_names.js";
import { get } from "./server.js";

const stages = [
  ["time/acting_s", "acting", "choosing actions, and all other work of the rollout"],
  ["time/stepping_s", "stepping", "in the environments' step()"],
  ["time/waiting_s", "waiting", "waiting for workers"],
  ["time/learning_s", "learning", "advantages and update"],
  ["time/evaluating_s", "evaluating", "evaluation"],
];

export class TimePanel {
  constructor(place, { onFailure }) {
    this.onFailure = onFailure;
    this.bars = element("div", { class: "bars" });
    this.title = element("h3", {});
    this.canvas = element("div", { class: "canvas" });
    this.chart = element("article", { class: "chart wide-chart", role: "img" }, element("div", { class: "chart-head" }, this.title), this.canvas);
    this.empty = element("p", { class: "empty", hidden: true });
    place.replaceChildren(
      element("div", { class: "keys" }, ...stages.map(([, name, what], i) => element("span", { title: what }, element("i", { style: { background: `var(--s${i})` } }), name))),
      this.bars, this.chart, this.empty);
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: Math.max(this.canvas.clientWidth, 120), height: 240 }));
    this.observer.observe(this.canvas);
  }

  async load({ runs, current, axis }) {
    this.asked = { runs, current, axis };
    const asked = this.asked;
    let answer = { runs: {} };
    try {
      if (runs.length) answer = await get("time", { run: runs, axis, width: 160 });
    } catch (error) {
      this.onFailure(error);
      return;
    }
    if (asked !== this.asked) return;
    this.drawBars(runs, answer.runs);
    this.drawShares(current && answer.runs[current] ? current : runs[0], answer.runs, axis);
  }

  soon() {
    if (this.waiting || !this.asked) return;
    this.waiting = setTimeout(() => { this.waiting = null; this.load(this.asked); }, 1000);
  }

  drawBars(runs, found) {
    const rows = runs.map((run) => {
      const total = found[run]?.total || {}, sum = Object.values(total).reduce((a, b) => a + b, 0);
      const parts = stages.map(([key, name], i) => [name, i, total[key] || 0]).filter(([, , spent]) => spent > 0);
      return element("div", { class: "bar-row" },
        nameNode(run, { class: "bar-name" }),
        element("span", { class: "stack", role: "img", "aria-label": parts.map(([name, , spent]) => `${name} ${percent(spent / sum)}`).join(", ") },
          ...parts.map(([name, i, spent]) => element("i", { title: `${name}: ${duration(spent)}, ${percent(spent / sum)}`, style: { width: `${(spent / sum) * 100}%`, background: `var(--s${i})` } },
            spent / sum > 0.09 ? percent(spent / sum) : ""))),
        element("span", { class: "number" }, sum ? duration(sum) : "–"));
    });
    this.bars.replaceChildren(...rows);
    const any = runs.some((run) => Object.keys(found[run]?.total || {}).length);
    this.empty.hidden = any;
    this.empty.textContent = runs.length ? "No iteration has finished yet." : "Choose a run in the list.";
    this.chart.hidden = !any;
  }

  drawShares(run, found, axis) {
    this.plot?.destroy();
    this.plot = null;
    const spent = found[run];
    if (!spent || !spent.x.length) { this.chart.hidden = true; return; }
    this.title.textContent = `Shares of each iteration: ${label(run)}`;
    const present = stages.map(([key], i) => [key, i]).filter(([key]) => spent.stages[key]);
    const totals = spent.x.map((_, at) => present.reduce((sum, [key]) => sum + spent.stages[key][at], 0));
    const levels = [];
    let below = spent.x.map(() => 0);
    for (const [key] of present) {
      below = below.map((level, at) => level + (totals[at] ? spent.stages[key][at] / totals[at] : 0));
      levels.push(below);
    }
    this.chart.setAttribute("aria-label", `Shares of acting, stepping, waiting, learning and evaluating over the run ${label(run)}`);
    const style = { stroke: () => css("--faint"), grid: { show: false }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    // The highest level first: lower levels are painted over it.
    const order = present.map((_, at) => present.length - 1 - at);
    this.plot = new uPlot({
      width: Math.max(this.canvas.clientWidth, 120), height: 240, padding: [8, 18, 0, 0], legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: [0, 1] } },
      axes: [{ ...style, size: 26, values: (_, splits) => (axis === "time" ? splits.map(duration) : marks(splits)) }, { ...style, size: 54, values: (_, splits) => splits.map(percent) }],
      series: [{}, ...order.map((at) => ({ stroke: () => css(`--s${present[at][1]}`), fill: () => css(`--s${present[at][1]}`), width: 0, points: { show: false }, paths: uPlot.paths.linear() }))],
    }, [spent.x, ...order.map((at) => levels[at])], this.canvas);
  }

  redraw() {
    this.plot?.redraw(false);
  }

  remove() {
    clearTimeout(this.waiting);
    this.asked = null;
    this.observer.disconnect();
    this.plot?.destroy();
  }
}
