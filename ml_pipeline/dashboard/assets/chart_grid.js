// Several charts with a common horizontal axis, updated with data from the server.
import { Chart } from "./chart.js";
import { element } from "./elements.js";
import { get } from "./server.js";

const mostPoints = 6; // times the requested number of points; with more, the curves are requested again

export class ChartGrid {
  constructor(place, { onClose, onZoomed, onFailure, emptyText, unitOf }) {
    Object.assign(this, { place, onClose, onZoomed, onFailure, emptyText });
    this.view = { axis: "step", zoom: null, slots: new Map(), wholeRange: () => this.wholeRange(), unitOf };
    this.smoothing = 0;
    this.metrics = [];
    this.charts = new Map();
    this.data = new Map();
    this.pending = null;
    this.ends = [0, 1];
    this.empty = element("p", { class: "empty", hidden: true });
    this.node = element("div", { class: "charts" });
    place.replaceChildren(this.empty, this.node);
    this.observer = new ResizeObserver(() => {
      clearTimeout(this.resizing);
      this.resizing = setTimeout(() => this.resized(), 80);
    });
    this.observer.observe(this.node);
  }

  get runs() {
    return [...this.view.slots.keys()];
  }

  // Request the curves of the current selection; resolves once they are drawn. Later calls replace earlier ones.
  async load() {
    this.pending?.abort();
    const pending = new AbortController();
    this.pending = pending;
    clearTimeout(this.soon);
    const runs = this.runs;
    if (!runs.length) { this.data = new Map(); this.draw(); return; }
    const [low, high] = this.view.zoom || [null, null];
    let answer;
    try {
      answer = await get("curves", { run: runs, metric: this.metrics, axis: this.view.axis, low, high, width: this.width(), smoothing: this.smoothing || null }, pending.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.onFailure(error);
      return;
    }
    if (pending.signal.aborted) return;
    this.data = new Map(runs.filter((run) => answer.runs[run]).map((run) => [run, answer.runs[run]]));
    if (!this.view.zoom) this.ends = this.extent();
    this.draw();
  }

  loadSoon(after = 120) {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.load(), after);
  }

  // Number of pixel columns of a chart; fewer with many runs, whose points could not be told apart.
  width() {
    const column = this.node.clientWidth > 640 ? this.node.clientWidth / 2 : this.node.clientWidth;
    return Math.round(Math.max(Math.min(column || 600, 9000 / Math.max(this.runs.length, 1)), 100));
  }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const { metrics } of this.data.values()) for (const { x } of Object.values(metrics)) {
      if (x.length) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
    }
    return low < high ? [low, high] : [Number.isFinite(low) ? low : 0, (Number.isFinite(low) ? low : 0) + 1];
  }

  wholeRange() {
    return this.ends;
  }

  draw() {
    const known = new Set([...this.data.values()].flatMap(({ names }) => names));
    const metrics = this.metrics.filter((metric) => known.has(metric));
    for (const [metric, chart] of this.charts) if (!metrics.includes(metric)) { chart.remove(); this.charts.delete(metric); }
    for (const metric of metrics) {
      if (!this.charts.has(metric)) {
        this.charts.set(metric, new Chart(metric, {
          view: this.view, onZoom: (low, high) => this.zoom([low, high]), onWhole: () => this.zoom(null), onClose: this.onClose,
        }));
      }
    }
    const nodes = metrics.map((metric) => this.charts.get(metric).node);
    if (nodes.length !== this.node.childElementCount || nodes.some((node, i) => node !== this.node.children[i])) this.node.replaceChildren(...nodes);
    for (const metric of metrics) this.drawChart(metric);
    const text = this.emptyText({ runs: this.runs, drawn: metrics, loaded: this.data.size > 0 });
    this.empty.hidden = !text;
    this.empty.textContent = text || "";
  }

  drawChart(metric) {
    const curves = new Map();
    for (const [run, { metrics }] of this.data) if (metrics[metric]) curves.set(run, metrics[metric]);
    this.charts.get(metric).show(curves);
  }

  zoom(range) {
    const same = JSON.stringify(range) === JSON.stringify(this.view.zoom);
    if (same) return;
    this.view.zoom = range;
    for (const chart of this.charts.values()) if (chart.plot) chart.rescale();
    this.onZoomed(range);
    this.loadSoon(60);
  }

  // New rows, by run. If they do not continue the loaded data, request the curves again.
  append(rows) {
    const changed = new Set();
    let names = false;
    for (const [run, more] of Object.entries(rows)) {
      const known = this.data.get(run);
      if (!known) { if (this.view.slots.has(run)) this.loadSoon(); continue; }
      if (more.names) { names = names || more.names.length !== known.names.length; known.names = more.names; }
      if (more.reload || more.from > known.n_rows) { this.loadSoon(); continue; }
      for (const metric of Object.keys(more.metrics)) if (this.appendTo(known, metric, more)) changed.add(metric);
      known.n_rows = Math.max(known.n_rows, more.to);
    }
    if (names) { this.loadSoon(); return; }
    for (const metric of this.charts.keys()) if (changed.size && !this.view.zoom) this.drawChart(metric);
    if (this.view.zoom) for (const metric of changed) if (this.charts.has(metric)) this.drawChart(metric);
  }

  appendTo(known, metric, more) {
    const curve = known.metrics[metric], xs = more[this.view.axis], values = more.metrics[metric];
    if (!curve) return false;
    let added = false;
    for (let i = Math.max(known.n_rows - more.from, 0); i < xs.length; i++) {
      if (xs[i] === null || values[i] === null) continue;
      this.ends = [this.ends[0], Math.max(this.ends[1], xs[i])];
      if (curve.smooth) {
        const w = this.smoothing, smooth = curve.smooth;
        smooth.sum = smooth.sum * w + (1 - w) * values[i];
        smooth.weight = smooth.weight * w + 1 - w;
        if (this.inside(xs[i])) { smooth.x.push(xs[i]); smooth.y.push(smooth.sum / smooth.weight); }
      }
      if (!this.inside(xs[i])) continue;
      curve.x.push(xs[i]);
      curve.y.push(values[i]);
      added = true;
    }
    if (curve.x.length > mostPoints * this.width()) this.loadSoon(1000);
    return added;
  }

  inside(x) {
    return !this.view.zoom || x <= this.view.zoom[1];
  }

  // The position of each run, from which the stream continues.
  position(server) {
    const rows = this.runs.map((run) => { const known = this.data.get(run); return known ? `${known.generation}.${known.n_rows}.${known.names.length}` : "0.0.0"; });
    return `${server};${rows.join(",")}`;
  }

  resized() {
    const width = this.width();
    for (const chart of this.charts.values()) chart.resize();
    if (this.lastWidth && width > 1.3 * this.lastWidth) this.loadSoon();
    this.lastWidth = width;
  }

  redraw() {
    for (const chart of this.charts.values()) chart.redraw();
  }

  remove() {
    this.pending?.abort();
    clearTimeout(this.soon);
    this.observer.disconnect();
    for (const chart of this.charts.values()) chart.remove();
  }
}
