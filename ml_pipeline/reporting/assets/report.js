"use strict";
// Draws the charts and tables of a report from the columns that interactive_page.py packed into the page.
(async () => {
  const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 2 });
  const dash = "–";
  const show = {
    word: (value) => value,
    whole: (value) => value.toLocaleString("en"),
    time: (value) => new Date(value * 1000).toISOString().replace("T", " ").replace(/:00\.000Z$/, "").replace(/ 00:00$/, ""),
    money: (value) => money.format(value),
    price: (value) => numbers.format(value),
    percent: (value) => percent.format(value),
    number: (value) => numbers.format(value),
  };
  const shown = (kind, value) => (value === null || Number.isNaN(value) ? dash : show[kind](value));

  async function unpack(column) {
    if (column.plain) return column.plain;
    const bytes = Uint8Array.from(atob(column.data), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = column.size, values = new Array(size);
    for (let i = 0, level = 0; i < size; i++) {
      const folded = planes[i] + planes[size + i] * 2 ** 8 + planes[2 * size + i] * 2 ** 16 + planes[3 * size + i] * 2 ** 24;
      level += folded % 2 ? -(folded + 1) / 2 : folded / 2;
      values[i] = column.missing && level === 0 ? null : column.first + column.step * level;
    }
    return column.words ? values.map((which) => column.words[which]) : values;
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const charts = [];
  let zooming = false;

  // One time axis: whatever one chart shows, all show.
  function zoom(min, max) {
    if (zooming) return;
    zooming = true;
    for (const chart of charts) chart.plot.setScale("x", { min, max });
    zooming = false;
  }

  function whole() {
    const times = charts[0].plot.data[0];
    zoom(times[0], times[times.length - 1]);
  }

  function marksPlugin(marks) {
    return {
      hooks: {
        draw: (plot) => {
          const { ctx, bbox } = plot, { min, max } = plot.scales.x, times = plot.data[0];
          ctx.save();
          ctx.beginPath();
          ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
          ctx.clip();
          for (const mark of marks) {
            const visible = mark.at.reduce((sum, bar) => sum + (times[bar] >= min && times[bar] <= max), 0);
            const size = Math.min(Math.max(2500 / Math.max(visible, 1), 2.5), 7) * devicePixelRatio;
            ctx.fillStyle = ctx.strokeStyle = mark.color;
            for (let i = 0; i < mark.at.length; i++) {
              const time = times[mark.at[i]];
              if (time < min || time > max) continue;
              const x = plot.valToPos(time, "x", true);
              ctx.beginPath();
              if (mark.shape === "line") {
                ctx.moveTo(x, bbox.top);
                ctx.lineTo(x, bbox.top + bbox.height);
                ctx.stroke();
                continue;
              }
              if (mark.values[i] === null) continue;
              const y = plot.valToPos(mark.values[i], "y", true), to = mark.shape === "up" ? size : -size;
              ctx.moveTo(x, y);
              ctx.lineTo(x - size * 0.7, y + to);
              ctx.lineTo(x + size * 0.7, y + to);
              ctx.fill();
            }
          }
          ctx.restore();
        },
      },
    };
  }

  // Labels of the time axis by the step between them: from this many seconds on, each label, and what a new year or day adds.
  const year = "\n{YYYY}", day = "\n{D} {MMM} {YYYY}";
  const timeLabels = [
    [31536000, "{YYYY}", null, null, null, null, null, null, 1],
    [2419200, "{MMM}", year, null, null, null, null, null, 1],
    [86400, "{D} {MMM}", year, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
  ];

  // Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or finer where these are fewer than three.
  function logarithmicTicks(low, high) {
    const between = (factors) => {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const factor of factors) found.push(Number(`${factor}e${power}`));
      }
      return found.filter((tick) => tick >= low && tick <= high);
    };
    const usual = between([1, 2, 5]), finer = between([1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]);
    return usual.length >= 3 || finer.length < 2 ? usual : finer;
  }

  // Without a pointer on the charts, legends show the last values in view.
  function lastInView(plot) {
    const times = plot.data[0], { max } = plot.scales.x;
    let last = times.length - 1;
    while (last > 0 && times[last] > max) last--;
    plot.setLegend({ idx: last }, false);
  }

  function draw(place, chart, data, logarithmic) {
    const axis = { stroke: () => css("--faint"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false } };
    const title = (text) => ({ label: text, labelSize: 16, labelGap: 0, labelFont: "11px system-ui, sans-serif" });
    const tick = { money: 0, percent: 1 }[chart.unit];
    const label = (value) => (chart.unit === "percent" ? `${(value * 100).toFixed(Math.abs(value) < 0.1 ? tick : 0)} %` : numbers.format(value));
    const options = {
      width: place.clientWidth,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      height: chart.height + 16, // of the title below
      cursor: { sync: { key: "time" }, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: logarithmic ? { distr: 3, range: (_, low, high) => [low / 1.1, high * 1.1] } : { distr: 1 } },
      axes: [{ ...axis, ...title("time of the bar, as in the data"), values: timeLabels }, {
        ...axis, ...title(chart.axis), size: 62, space: 24,
        values: (_, splits) => splits.map((value) => (value === null ? "" : label(value))),
        ...(logarithmic ? { splits: (_, which, low, high) => logarithmicTicks(low, high), filter: (_, splits) => splits } : {}),
      }],
      series: [
        { label: "time", value: (_, value) => (value === null ? dash : show.time(value)) },
        ...chart.curves.map((curve) => ({
          label: curve.label,
          stroke: curve.color,
          width: curve.width,
          dash: curve.dashed ? [6, 4] : undefined,
          fill: curve.filled ? curve.color + "33" : undefined,
          paths: curve.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: false },
          spanGaps: false,
          value: (_, value) => shown(chart.unit, value),
        })),
      ],
      plugins: [marksPlugin(chart.marks)],
      hooks: {
        setScale: [(plot, key) => key === "x" && zoom(plot.scales.x.min, plot.scales.x.max)],
        draw: [(plot) => plot.cursor.idx == null && lastInView(plot)],
        setLegend: [(plot) => plot.legend.idx == null && plot.scales.x.max != null && lastInView(plot)],
      },
    };
    return new uPlot(options, data, place);
  }

  async function makeChart(place, chart, times) {
    const data = [times, ...(await Promise.all(chart.curves.map((curve) => unpack(curve.values))))];
    for (const mark of chart.marks) [mark.at, mark.values] = await Promise.all([unpack(mark.at), unpack(mark.values)]);
    const head = element("div", { class: "chart-head" }, element("h3", {}, chart.title));
    const canvas = element("div");
    place.append(head, canvas);
    if (chart.marks.length) {
      place.append(element("div", { class: "mark-names" }, ...chart.marks.map((mark) =>
        element("span", { style: `color: ${mark.color}` }, `${{ up: "▲", down: "▼", line: "|" }[mark.shape]} ${mark.label} (${mark.at.length.toLocaleString("en")})`))));
    }
    const made = { plot: null, logarithmic: chart.log, canvas };
    const positive = data.slice(1).every((values) => values.every((value) => value === null || value > 0));
    const redraw = () => {
      const { min, max } = made.plot ? made.plot.scales.x : { min: times[0], max: times[times.length - 1] };
      if (made.plot) made.plot.destroy();
      made.plot = draw(canvas, chart, data, made.logarithmic && positive);
      zoom(min, max);
    };
    if (positive && (chart.unit === "money" || chart.unit === "price")) {
      const button = element("button", { type: "button", onclick: () => {
        made.logarithmic = !made.logarithmic;
        button.textContent = made.logarithmic ? "linear scale" : "log scale";
        redraw();
      } }, made.logarithmic ? "linear scale" : "log scale");
      head.append(button);
    }
    head.append(element("button", { type: "button", onclick: whole }, "whole period"));
    charts.push(made);
    redraw();
    place.tabIndex = 0;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${chart.title}; arrow keys move, + and - zoom, 0 shows the whole period`);
    place.addEventListener("keydown", (event) => {
      const { min, max } = made.plot.scales.x, span = max - min, by = span / 5;
      const to = { ArrowLeft: [min - by, max - by], ArrowRight: [min + by, max + by], "+": [min + by, max - by], "-": [min - by, max + by], 0: [times[0], times[times.length - 1]] }[event.key];
      if (!to || event.target !== place) return;
      event.preventDefault();
      zoom(Math.max(to[0], times[0]), Math.min(to[1], times[times.length - 1]));
    });
  }

  async function makeTable(place, table, times) {
    const columns = await Promise.all(table.columns.map((column) => unpack(column.values)));
    const bars = table.bars && (await Promise.all(table.bars.map(unpack)));
    const details = await Promise.all(Object.entries(table.details).map(async ([name, packed]) => [name, await unpack(packed)]));
    const size = columns.length ? columns[0].length : 0, page = 50;
    const order = Array.from({ length: size }, (_, i) => i);
    let many = page, sorted = -1, rising = true;
    const body = element("tbody"), told = element("p", { class: "hint" });
    const headers = table.columns.map((column, i) => element("th", { "aria-sort": "none" },
      element("button", { type: "button", onclick: () => sort(i) }, column.label)));
    const more = element("button", { type: "button", onclick: () => { many += 500; fill(); } });

    function cell(column, value, i) {
      const text = shown(column.kind, value), link = column.links[i];
      const inside = link ? element("a", { href: link }, text) : text;
      return column.kind === "word" ? element("td", { class: "word", title: text }, inside) : element("td", {}, inside);
    }

    function choose(row, i) {
      place.dispatchEvent(new CustomEvent("rowchosen", { detail: i }));
      for (const other of [...body.children]) {
        other.removeAttribute("aria-selected");
        if (other.className === "detail-row") other.remove();
      }
      row.setAttribute("aria-selected", "true");
      if (bars && charts.length) {
        const first = times[bars[0][i]], last = times[bars[1][i]];
        const beside = Math.max((last - first) / 2, 20 * (times[times.length - 1] - times[0]) / Math.max(times.length - 1, 1));
        zoom(Math.max(first - beside, times[0]), Math.min(last + beside, times[times.length - 1]));
      }
      if (details.length) {
        row.after(element("tr", { class: "detail-row" }, element("td", { colspan: columns.length },
          element("h3", {}, table.detailTitle), element("div", { class: "details" },
            ...details.map(([name, values]) => element("div", {}, `${name}: ${shown("number", values[i])}`))))));
      }
    }

    function fill() {
      body.replaceChildren(...order.slice(0, many).map((i) => {
        const row = element("tr", { tabindex: "0" }, ...columns.map((values, c) => cell(table.columns[c], values[i], i)));
        row.addEventListener("click", () => choose(row, i));
        row.addEventListener("keydown", (event) => event.key === "Enter" && choose(row, i));
        return row;
      }));
      more.hidden = many >= size;
      more.textContent = `show more of the ${size.toLocaleString("en")} rows`;
    }

    function sort(c) {
      rising = sorted === c ? !rising : true;
      sorted = c;
      const values = columns[c], empty = (value) => value === null || Number.isNaN(value);
      order.sort((a, b) => {
        if (empty(values[a]) || empty(values[b])) return empty(values[a]) - empty(values[b]) || a - b;
        return (values[a] < values[b] ? -1 : values[a] > values[b] ? 1 : 0) * (rising ? 1 : -1) || a - b;
      });
      headers.forEach((header, i) => header.setAttribute("aria-sort", i === c ? (rising ? "ascending" : "descending") : "none"));
      fill();
    }

    if (size === 0) told.textContent = "None.";
    else if (bars) told.textContent = "A header sorts, and a row shows its bars in the charts: by a click, or by Tab and Enter.";
    place.append(element("h3", {}, table.title), told);
    if (size) place.append(element("table", {}, element("thead", {}, element("tr", {}, ...headers)), body), more);
    fill();
  }

  if (typeof DecompressionStream === "undefined") {
    document.body.prepend(element("p", { class: "warning" }, "The charts need a browser of 2023 or later."));
    return;
  }
  const content = JSON.parse(document.getElementById("data").textContent);
  const times = await unpack(content.times);
  for (let i = 0; i < content.charts.length; i++) await makeChart(document.getElementById(`chart-${i}`), content.charts[i], times);
  for (let i = 0; i < content.tables.length; i++) await makeTable(document.getElementById(`table-${i}`), content.tables[i], times);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => charts.forEach(({ plot, canvas }) => plot.setSize({ width: canvas.clientWidth, height: plot.height })), 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ plot }) => plot.redraw()));
  document.reportCharts = charts;
  document.documentElement.dataset.drawn = "true";
})();
