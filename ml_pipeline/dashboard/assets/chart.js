// One chart: a metric of the chosen runs over each other.
import { css, element, nColors, strokeOf } from "./elements.js";
import { duration, logMarks, marks, number } from "./format.js";
import { metricName } from "./metric_names.js";
import { label, nameNode } from "./run_names.js";

const durations = [0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];
const counts = ["workers/count", "time/n_envs"];
const dashes = [undefined, [6, 4], [2, 3]];
const markSpace = 28, mostEnds = 6;

// Style of a line. While a run is under the pointer, other runs show their smoothed lines only, so that these cannot be
// mistaken for raw lines.
export function look({ faint, isFocused, anyFocused }) {
  if (faint) return { opacity: anyFocused && !isFocused ? 0 : 0.25, width: 1 };
  return { opacity: anyFocused && !isFocused ? 0.45 : 1, width: 1.5 };
}

// Smallest and largest value of lines through [x, y] between low and high, including both edges.
export function valuesBetween(tables, low, high) {
  let min = Infinity, max = -Infinity;
  const take = (value) => { min = Math.min(min, value); max = Math.max(max, value); };
  for (const [x, y] of tables) {
    let before = null;
    for (let i = 0; i < x.length; i++) {
      if (y[i] === null || y[i] === undefined) continue;
      if (before !== null) for (const edge of [low, high]) {
        if (x[before] < edge && edge < x[i]) take(y[before] + ((y[i] - y[before]) * (edge - x[before])) / (x[i] - x[before]));
      }
      if (x[i] >= low && x[i] <= high) take(y[i]);
      before = i;
    }
  }
  return min <= max ? [min, max] : null;
}

export class Chart {
  // view: shared by all charts: axis, zoom, the runs with their slots, and the unit of a run's score.
  constructor(metric, { view, onZoom, onWhole, onClose, height = 230 }) {
    Object.assign(this, { metric, view, onZoom, onWhole, height });
    this.logarithmic = false;
    this.plot = null;
    this.key = "";
    const { title } = metricName(metric);
    this.title = element("h3", { title: metric }, title);
    this.ends = element("div", { class: "ends" });
    this.note = element("span", { class: "note" });
    this.log = element("button", { type: "button", class: "quiet", "aria-pressed": "false", title: "Logarithmic scale", onclick: () => this.setLog(!this.logarithmic) }, "log");
    this.canvas = element("div", { class: "canvas" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.node = element("article", { class: "chart", tabindex: "0", role: "img", "data-metric": metric },
      element("div", { class: "chart-head" }, this.title, this.note, this.log,
        onClose && element("button", { type: "button", class: "quiet", "aria-label": `Close the chart of ${title}`, onclick: () => onClose(metric) }, "×")),
      this.ends, this.canvas);
    this.node.addEventListener("keydown", (event) => this.keyPressed(event));
  }

  setLog(logarithmic) {
    this.logarithmic = logarithmic;
    this.log.setAttribute("aria-pressed", String(logarithmic));
    this.show(this.curves);
  }

  // curves: by run { x, y, smooth: { x, y } }, in the order of the runs.
  show(curves) {
    this.curves = curves;
    const runs = [...curves.keys()];
    const smoothed = [...curves.values()].some((curve) => curve.smooth);
    const tables = [], series = [];
    for (const [run, curve] of curves) {
      const slot = this.view.slots.get(run);
      for (const [part, faint] of curve.smooth ? [[curve, true], [curve.smooth, false]] : [[curve, false]]) {
        tables.push([part.x, this.logarithmic ? part.y.map((value) => (value > 0 ? value : null)) : part.y]);
        series.push({ run, slot, faint });
      }
    }
    this.series = series;
    this.tables = tables;
    this.unit = metricName(this.metric, runs.map((run) => this.view.unitOf?.(run))).unit;
    this.drawEnds();
    const few = [...curves.values()].every((curve) => curve.x.length < 60);
    const data = tables.length ? uPlot.join(tables) : [[]];
    const key = JSON.stringify([series, this.logarithmic, this.view.axis, few, this.unit, this.canvas.clientWidth]);
    if (!this.plot || key !== this.key) {
      this.key = key;
      this.draw(data, series, few);
    } else {
      this.plot.setData(data, false);
      this.rescale();
    }
    const low = this.logarithmic && [...curves.values()].some((curve) => curve.y.some((value) => value <= 0));
    const [left, right] = this.range();
    this.note.textContent = !valuesBetween(this.tables, left, right) ? "nothing in this range" : low ? "values up to 0 are not on a log scale" : "";
    this.node.dataset.points = String([...curves.values()].reduce((sum, curve) => sum + curve.x.length, 0));
    this.node.setAttribute("aria-label", `${metricName(this.metric).title} of ${runs.length === 1 ? label(runs[0]) : `${runs.length} runs`}${this.lastValues(smoothed)}. Arrow keys move, + and - zoom, 0 shows the whole range, L switches the scale.`);
  }

  lastValues() {
    const parts = [...this.curves].slice(0, 4).map(([run, { y }]) => (y.length ? `${label(run)} ends at ${number(y[y.length - 1])}${this.unit ? ` ${this.unit}` : ""}` : ""));
    return parts.filter(Boolean).length ? `: ${parts.filter(Boolean).join(", ")}` : "";
  }

  // The last value of each line, next to its color.
  drawEnds() {
    const ends = [...this.curves].filter(([, { y }]) => y.length);
    this.ends.replaceChildren(...ends.slice(0, mostEnds).map(([run, { y }]) => element("span", { title: `${run}: last value` },
      element("i", { style: { background: `var(--c${this.view.slots.get(run) % nColors})` } }), number(y[y.length - 1]))),
    ends.length > mostEnds ? `and ${ends.length - mostEnds} more` : "");
  }

  bounds() {
    const ends = [...this.curves.values()].filter(({ x }) => x.length).map(({ x }) => [x[0], x[x.length - 1]]);
    if (!ends.length) return [0, 1];
    return this.view.wholeRange ? this.view.wholeRange() : [Math.min(...ends.map(([low]) => low)), Math.max(...ends.map(([, high]) => high))];
  }

  // Of the horizontal axis.
  range() {
    const [low, high] = this.view.zoom || this.bounds();
    return [low, high > low ? high : low + 1];
  }

  // Range of the vertical axis: of the visible part of the lines, whether or not it has points.
  heights(low, high) {
    const found = valuesBetween(this.tables, low, high);
    if (this.logarithmic) return found ? [found[0] / 1.15, found[1] * 1.15] : [0.1, 1];
    if (!found) return [0, 1];
    if (counts.includes(this.metric)) return [0, Math.max(found[1] * 1.05, 1)];
    return uPlot.rangeNum(...found, 0.1, true);
  }

  rescale() {
    const [low, high] = this.range(), [min, max] = this.heights(low, high);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: low, max: high });
      this.plot.setScale("y", { min, max });
    });
  }

  draw(data, series, few) {
    if (this.plot) this.plot.destroy();
    const [low, high] = this.range(), [bottom, top] = this.heights(low, high);
    this.focused = null;
    const isTime = this.view.axis === "time";
    const axis = {
      stroke: () => css("--faint"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif",
    };
    const title = (text) => (text ? { label: text, labelSize: 16, labelGap: 0, labelFont: "11px system-ui, sans-serif" } : {});
    const options = {
      width: Math.max(this.canvas.clientWidth, 120),
      height: this.height,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      focus: { alpha: 1 }, // see look()
      cursor: { sync: { key: "runs", setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, drag: { x: true, y: false, dist: 4, setScale: false }, focus: { prox: 16 }, points: { size: 6 } },
      scales: {
        x: { time: false, auto: false, min: low, max: high },
        y: { distr: this.logarithmic ? 3 : 1, auto: false, min: bottom, max: top, range: (_, min, max) => [min, max] },
      },
      axes: [
        { ...axis, ...title(isTime ? "training time" : "environment steps"), size: 24, ...(isTime ? { incrs: durations, values: (_, splits) => splits.map(duration) } : { values: (_, splits) => marks(splits) }) },
        { ...axis, ...title(this.unit), size: 50, space: markSpace, values: (_, splits) => marks(splits),
          ...(this.logarithmic ? { splits: (plot, _, min, max) => logMarks(min, max, Math.max(plot.bbox.height / devicePixelRatio / markSpace, 2)), filter: (_, splits) => splits } : {}),
          ...(counts.includes(this.metric) ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] } : {}) },
      ],
      series: [{}, ...series.map(({ run, slot, faint }) => ({
        stroke: () => {
          const { opacity } = look({ faint, isFocused: run === this.focused, anyFocused: this.focused !== null });
          return strokeOf(slot) + Math.round(opacity * 255).toString(16).padStart(2, "0");
        },
        width: look({ faint }).width,
        dash: dashes[Math.floor(slot / nColors) % dashes.length],
        spanGaps: true,
        points: { show: few && !faint, size: 4, fill: () => strokeOf(slot) },
      }))],
      hooks: {
        setSelect: [(plot) => this.zoomToSelection(plot)],
        setCursor: [(plot) => this.showTip(plot)],
        setSeries: [(plot, i) => {
          const focused = i ? this.series[i - 1].run : null;
          if (focused !== this.focused) { this.focused = focused; plot.redraw(false); }
        }],
      },
    };
    // A double click shows the whole range of all charts, not only the loaded points.
    options.cursor.bind = { dblclick: () => () => { this.onWhole(); return null; } };
    this.plot = new uPlot(options, data, this.canvas);
    this.tip.hidden = true;
    this.plot.over.append(this.tip);
  }

  zoomToSelection(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom(...range);
  }

  showTip(plot) {
    const { idx, left, top } = plot.cursor;
    const here = plot.over.matches(":hover");
    if (idx === null || idx === undefined || left < 0 || !here) { this.tip.hidden = true; return; }
    const at = plot.posToVal(left, "x");
    const lines = this.series.map((each, i) => ({ ...each, point: nearest(plot.data[0], plot.data[i + 1], idx, at) })).filter(({ point, faint }) => point && !faint);
    if (!lines.length) { this.tip.hidden = true; return; }
    const x = plot.data[0][idx];
    this.tip.replaceChildren(
      element("div", { class: "at" }, this.view.axis === "time" ? duration(x) : `${Math.round(x).toLocaleString("en")} steps`),
      ...lines.slice(0, 12).map(({ run, slot, point }) => element("div", {},
        element("i", { style: { background: `var(--c${slot % nColors})` } }), nameNode(run), element("b", {}, number(point)))),
      lines.length > 12 ? element("div", {}, `and ${lines.length - 12} more`) : "",
    );
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip, area = plot.over;
    this.tip.style.left = `${left + 14 + width > area.clientWidth ? Math.max(left - width - 14, 0) : left + 14}px`;
    this.tip.style.top = `${Math.min(Math.max(top - height / 2, 0), Math.max(area.clientHeight - height, 0))}px`;
  }

  keyPressed(event) {
    if (event.target !== this.node || !this.plot) return;
    if (event.key === "l" || event.key === "L") { this.setLog(!this.logarithmic); return; }
    const [first, last] = this.bounds(), [min, max] = this.view.zoom || [first, last], by = (max - min) / 5;
    if (event.key === "0") { this.onWhole(); event.preventDefault(); return; }
    const to = { ArrowLeft: [min - by, max - by], ArrowRight: [min + by, max + by], "+": [min + by, max - by], "=": [min + by, max - by], "-": [min - by, max + by] }[event.key];
    if (!to) return;
    event.preventDefault();
    const span = to[1] - to[0];
    if (span >= last - first) { this.onWhole(); return; }
    const low = Math.min(Math.max(to[0], first), last - span);
    this.onZoom(low, low + span);
  }

  resize() {
    if (this.plot && this.canvas.clientWidth) {
      this.plot.setSize({ width: this.canvas.clientWidth, height: this.height });
    }
  }

  redraw() {
    if (this.plot) this.plot.redraw(false);
  }

  remove() {
    if (this.plot) this.plot.destroy();
    this.node.remove();
  }
}

// The value at an index or, if the curve has none there, the nearest one.
function nearest(x, y, idx, at) {
  let before = idx, after = idx;
  while (before >= 0 && (y[before] === undefined || y[before] === null)) before--;
  while (after < x.length && (y[after] === undefined || y[after] === null)) after++;
  if (before < 0 && after >= x.length) return null;
  if (before < 0) return x[after] <= at ? y[after] : null;
  if (after >= x.length) return y[before];
  return Math.abs(x[before] - at) <= Math.abs(x[after] - at) ? y[before] : y[after];
}
