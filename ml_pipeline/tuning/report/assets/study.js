"use strict";
// Draws the charts of a study from the data that chart_data.py wrote into the page. A trial is its place in the lists.
(() => {
  const study = JSON.parse(document.getElementById("study").textContent);
  const size = study.number.length, every = Array.from({ length: size }, (_, i) => i);
  const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
  const short = (value) => (Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1).replace("e+", "e").replace(".0e", "e") : numbers.format(value));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const winner = study.winner === null ? -1 : study.number.indexOf(study.winner);
  const scored = every.filter((i) => study.state[i] === "complete" && study.value[i] !== null);
  const valued = every.filter((i) => study.value[i] !== null);
  const colorOf = { complete: "--complete", pruned: "--pruned", failed: "--failed", impossible: "--none", running: "--running", stopped: "--none", waiting: "--none" };
  let colors = {};
  const refreshColors = () => {
    for (const name of ["--ink", "--paper", "--line", "--faint", "--complete", "--pruned", "--failed", "--running", "--winner", "--none", "--low", "--high"]) colors[name] = css(name);
  };

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // From a value to a place between 0 and 1. A few values far below the others would press these together: they are
  // drawn at the edge.
  function valueScale(indices) {
    const values = indices.map((i) => study.value[i]).sort((a, b) => a - b);
    if (!values.length) return null;
    const at = (share) => values[Math.min(values.length - 1, Math.floor(share * values.length))];
    const reach = 3 * Math.max(at(0.75) - at(0.25), 1e-12 * Math.abs(at(0.5)));
    let low = Math.max(values[0], at(0.25) - reach), high = values[values.length - 1];
    if (!(high > low)) [low, high] = [low - Math.max(Math.abs(low) * 0.05, 0.5), high + Math.max(Math.abs(high) * 0.05, 0.5)];
    const pad = (high - low) * 0.06;
    return { low: low - pad, high: high + pad, log: false, below: values.filter((value) => value < low).length };
  }

  function settingScale(setting) {
    if (setting.words) return { low: -0.5, high: setting.words.length - 0.5, words: setting.words, log: false };
    const values = setting.values.filter((value) => value !== null);
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) return { low: 0, high: 1, log: false };
    if (setting.log) {
      if (low === high) [low, high] = [low / 2, high * 2];
      const pad = Math.pow(high / low, 0.04);
      return { low: low / pad, high: high * pad, log: true };
    }
    if (low === high) [low, high] = [low - Math.max(Math.abs(low) * 0.1, 0.5), high + Math.max(Math.abs(high) * 0.1, 0.5)];
    const pad = (high - low) * 0.04;
    return { low: low - pad, high: high + pad, log: false };
  }

  const part = (scale, value) => {
    const where = scale.log ? Math.log(value / scale.low) / Math.log(scale.high / scale.low) : (value - scale.low) / (scale.high - scale.low);
    return Math.min(Math.max(where, 0), 1);
  };

  function ticks(scale, wanted) {
    if (scale.words) {
      const step = Math.ceil(scale.words.length / Math.max(wanted * 2, 1));
      return scale.words.map((word, i) => [i, word]).filter(([i]) => i % step === 0);
    }
    if (scale.log) {
      const found = [], decades = Math.log10(scale.high / scale.low);
      const parts = decades > wanted / 1.5 ? [1] : [1, 2, 5];
      const jump = decades > 2 * wanted ? Math.ceil(decades / wanted) : 1;
      for (let power = Math.floor(Math.log10(scale.low)); power <= Math.log10(scale.high); power += jump)
        for (const each of parts) {
          const value = each * 10 ** power;
          if (value >= scale.low && value <= scale.high) found.push([value, short(value)]);
        }
      if (found.length > 1) return found; // else at equal distances
    }
    const raw = (scale.high - scale.low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const least = scale.whole ? 1 : 0;
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= Math.max(raw, least) && (!least || Number.isInteger(each))) ?? 1;
    const found = [];
    for (let k = Math.ceil(scale.low / step); k * step <= scale.high; k++) found.push([k * step, short(Number((k * step).toPrecision(12)))]);
    return found;
  }

  // One tooltip and one chosen trial for all charts.
  const tip = element("div", { id: "tip", hidden: "" });
  document.body.append(tip);
  const plots = [];
  let chosen = -1;

  function words(i) {
    const lines = [`trial ${study.number[i]}, ${study.state[i]}${i === winner ? ", the winner" : ""}`];
    if (study.value[i] !== null) lines.push(`${study.unit} ${numbers.format(study.value[i])}`);
    for (const setting of study.settings) {
      const value = setting.values[i];
      if (value !== null) lines.push(`${setting.name}: ${setting.words ? setting.words[value] : numbers.format(value)}`);
    }
    if (study.host[i]) lines.push(`on ${study.host[i]}`);
    return lines.join("\n");
  }

  function choose(i) {
    if (chosen === i) return;
    chosen = i;
    for (const plot of plots) plot.mark();
    document.documentElement.dataset.chosen = i < 0 ? "" : study.number[i];
  }

  function showTip(i, event) {
    tip.hidden = i < 0;
    if (i < 0) return;
    tip.textContent = words(i);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
  }

  // A chart: `draw(ctx, width, height)` draws it and returns where trials are, as [trial, x, y]; `over` marks one.
  // xTitle, yTitle: what its axes measure.
  function makePlot(place, { height, label, xTitle, yTitle, draw, over, least = 0, down, move, up }) {
    const base = element("canvas"), above = element("canvas");
    place.classList.add("plot");
    place.append(base, above);
    place.tabIndex = 0;
    place.setAttribute("role", "img");
    if (xTitle) Object.assign(place.dataset, { x: xTitle, y: yTitle });
    place.setAttribute("aria-label", `${label}; arrow keys go from trial to trial`);
    let points = [], width = 0;
    const titles = (ctx, width, height) => {
      ctx.fillStyle = colors["--faint"];
      ctx.textAlign = "center";
      ctx.textBaseline = "bottom";
      ctx.fillText(fit(ctx, xTitle, width), width / 2, height - 1);
      ctx.textBaseline = "top";
      ctx.translate(1, (height - 40) / 2);
      ctx.rotate(-Math.PI / 2);
      ctx.fillText(fit(ctx, yTitle, height - 40), 0, 0);
    };
    const tall = () => (typeof height === "function" ? height(width) : height);
    const context = (canvas) => {
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall() * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${tall()}px`;
      const ctx = canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.font = "12px system-ui, sans-serif";
      return ctx;
    };
    const plot = {
      redraw() {
        width = Math.max(place.parentElement.clientWidth, least);
        const ctx = context(base);
        points = draw(ctx, width, tall()) || [];
        if (xTitle) titles(ctx, width, tall());
        plot.mark();
      },
      mark() {
        const ctx = context(above);
        if (chosen < 0) return;
        ctx.strokeStyle = colors["--ink"];
        ctx.lineWidth = 2;
        if (over) return over(ctx, width, tall(), chosen);
        for (const [i, x, y] of points) {
          if (i !== chosen) continue;
          ctx.beginPath();
          ctx.arc(x, y, 6, 0, 7);
          ctx.stroke();
        }
      },
    };
    const nearest = (event) => {
      const box = base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      let found = -1, least = 24 ** 2;
      for (const [i, px, py, wide = 0] of points) {
        const dx = x < px ? px - x : x > px + wide ? x - px - wide : 0, far = dx ** 2 + (y - py) ** 2;
        if (far < least) [found, least] = [i, far];
      }
      return found;
    };
    place.addEventListener("pointermove", (event) => {
      if (move && move(event, base.getBoundingClientRect())) return;
      const i = nearest(event);
      choose(i);
      showTip(i, event);
    });
    place.addEventListener("pointerleave", () => { choose(-1); tip.hidden = true; });
    if (down) place.addEventListener("pointerdown", (event) => down(event, base.getBoundingClientRect()) && place.setPointerCapture(event.pointerId));
    if (up) place.addEventListener("pointerup", () => up());
    place.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !points.length) return;
      event.preventDefault();
      const known = [...new Set(points.map(([i]) => i))].sort((a, b) => a - b);
      const next = known[(known.indexOf(chosen) + by + known.length) % known.length];
      choose(next);
      const [, x, y] = points.find(([i]) => i === next), box = base.getBoundingClientRect();
      showTip(next, { clientX: box.left + x, clientY: box.top + y });
    });
    place.addEventListener("blur", () => { choose(-1); tip.hidden = true; });
    plots.push(plot);
    return plot;
  }

  // Axes within a frame; returns functions from values to pixels.
  function frame(ctx, box, xs, ys, { crowded = false } = {}) {
    ctx.strokeStyle = colors["--line"];
    ctx.fillStyle = colors["--faint"];
    ctx.lineWidth = 1;
    const x = (value) => box.left + part(xs, value) * box.width, y = (value) => box.top + (1 - part(ys, value)) * box.height;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (const [value, text] of ticks(ys, Math.max(box.height / 45, 2))) {
      ctx.beginPath();
      ctx.moveTo(box.left, Math.round(y(value)) + 0.5);
      ctx.lineTo(box.left + box.width, Math.round(y(value)) + 0.5);
      ctx.stroke();
      ctx.fillText(text, box.left - 6, y(value));
    }
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    let free = -Infinity;
    for (const [value, text] of ticks(xs, Math.max(box.width / (crowded ? 60 : 90), 2))) {
      const fitting = xs.words ? fit(ctx, text, (box.width / xs.words.length) * (xs.words.length > 4 ? 1.6 : 1) - 6) : text;
      const half = ctx.measureText(fitting).width / 2, at = Math.min(Math.max(x(value), box.left + half - 20), box.left + box.width - half + 8);
      if (at - half < free + 4) continue;
      free = at + half;
      ctx.fillText(fitting, at, box.top + box.height + 6);
    }
    return { x, y };
  }

  function fit(ctx, text, width) {
    if (ctx.measureText(text).width <= width) return text;
    let kept = text;
    while (kept.length > 1 && ctx.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
    return `${kept}…`;
  }

  function dot(ctx, x, y, state, isWinner) {
    ctx.beginPath();
    ctx.arc(x, y, isWinner ? 5.5 : 3.2, 0, 7);
    if (state === "complete" || isWinner) {
      ctx.fillStyle = isWinner ? colors["--winner"] : colors["--complete"];
      ctx.globalAlpha = isWinner ? 1 : 0.75;
      ctx.fill();
      ctx.globalAlpha = 1;
    } else {
      ctx.strokeStyle = colors[colorOf[state]];
      ctx.lineWidth = 1.2;
      ctx.stroke();
    }
  }

  function cross(ctx, x, y, color) {
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.4;
    ctx.beginPath();
    ctx.moveTo(x - 3, y - 3); ctx.lineTo(x + 3, y + 3);
    ctx.moveTo(x - 3, y + 3); ctx.lineTo(x + 3, y - 3);
    ctx.stroke();
  }

  function history(place) {
    const ys = valueScale(valued);
    if (!ys) return;
    const xs = { low: Math.min(...study.number) - 0.5, high: Math.max(...study.number) + 0.5, log: false, whole: true };
    makePlot(place, { height: 320, label: "Value by trial", xTitle: "trial", yTitle: study.unit, draw: (ctx, width, height) => {
      const box = { left: 72, top: 8, width: width - 82, height: height - 50 };
      const { x, y } = frame(ctx, box, xs, ys);
      const points = [];
      ctx.strokeStyle = colors["--winner"];
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      let begun = false;
      for (const i of every) {
        if (study.best[i] === null) continue;
        const px = x(study.number[i]), py = y(study.best[i]);
        if (begun) ctx.lineTo(px, y(study.best[i - 1])); else ctx.moveTo(px, py);
        ctx.lineTo(px, py);
        begun = true;
      }
      ctx.stroke();
      for (const i of every) {
        const px = x(study.number[i]);
        if (study.state[i] === "failed" || study.state[i] === "impossible") {
          cross(ctx, px, box.top + box.height - 4, colors[colorOf[study.state[i]]]);
          points.push([i, px, box.top + box.height - 4]);
        } else if (study.value[i] !== null) {
          dot(ctx, px, y(study.value[i]), study.state[i], i === winner);
          points.push([i, px, y(study.value[i])]);
        }
      }
      return points;
    } });
    if (ys.below) place.after(element("p", { class: "hint" }, `${ys.below.toLocaleString("en")} of the values are below the chart and are drawn at its lower edge.`));
  }

  function slices(place) {
    const ys = valueScale(valued);
    if (!ys) return;
    for (const setting of study.settings) {
      const inside = element("div"), canvas = element("div");
      inside.append(canvas);
      place.append(inside);
      const xs = settingScale(setting);
      makePlot(canvas, { height: 210, label: `Value by ${setting.name}`, xTitle: setting.name, yTitle: study.unit, draw: (ctx, width, height) => {
        const box = { left: 64, top: 8, width: width - 76, height: height - 52 };
        const { x, y } = frame(ctx, box, xs, ys, { crowded: true });
        const points = [];
        for (const i of valued) {
          if (setting.values[i] === null) continue;
          // Words share a place: their trials are spread a little, always in the same way.
          const spread = setting.words ? (((study.number[i] * 0.618034) % 1) - 0.5) * 0.5 : 0;
          const px = x(setting.values[i] + spread), py = y(study.value[i]);
          dot(ctx, px, py, study.state[i], i === winner);
          points.push([i, px, py]);
        }
        return points;
      } });
    }
  }

  function mixed(share) {
    const hex = (text) => [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16));
    const low = hex(colors["--low"]), high = hex(colors["--high"]);
    return `rgb(${low.map((each, k) => Math.round(each + (high[k] - each) * share)).join(",")})`;
  }

  function parallel(place, told) {
    const ys = valueScale(scored);
    if (!ys || !study.settings.length) return;
    const axes = [{ name: study.unit, scale: ys, values: study.value }, ...study.settings.map((setting) => ({ name: setting.name, scale: settingScale(setting), values: setting.values }))];
    const ranges = new Map();
    let dragged = null;
    const least = axes.length * 96, top = 34, bottom = 14;
    const at = (width, a) => 40 + (axes.length > 1 ? (a / (axes.length - 1)) * (width - 90) : 0);
    const line = (ctx, width, height, i) => {
      ctx.beginPath();
      let begun = false;
      axes.forEach(({ scale, values }, a) => {
        if (values[i] === null) { begun = false; return; }
        const x = at(width, a), y = top + (1 - part(scale, values[i])) * (height - top - bottom);
        if (begun) ctx.lineTo(x, y); else ctx.moveTo(x, y);
        begun = true;
      });
      ctx.stroke();
    };
    const within = (i) => [...ranges].every(([a, [low, high]]) => {
      if (axes[a].values[i] === null) return false;
      const where = part(axes[a].scale, axes[a].values[i]);
      return where >= low && where <= high;
    });
    const order = [...scored].sort((a, b) => study.value[a] - study.value[b]);
    const plot = makePlot(place, { height: 340, least, label: "Parallel coordinates", draw: (ctx, width, height) => {
      const inner = height - top - bottom, kept = new Set(order.filter(within));
      ctx.lineWidth = 1;
      ctx.globalAlpha = ranges.size ? 0.25 : 0.7;
      ctx.strokeStyle = colors["--line"];
      if (ranges.size) for (const i of order) if (!kept.has(i)) line(ctx, width, height, i);
      ctx.globalAlpha = 0.75;
      for (const i of order) {
        if (!kept.has(i)) continue;
        ctx.strokeStyle = i === winner ? colors["--winner"] : mixed(part(ys, study.value[i]));
        ctx.lineWidth = i === winner ? 3 : 1.2;
        line(ctx, width, height, i);
      }
      ctx.globalAlpha = 1;
      axes.forEach(({ name, scale }, a) => {
        const x = at(width, a);
        ctx.strokeStyle = colors["--faint"];
        ctx.lineWidth = 1;
        ctx.beginPath();
        ctx.moveTo(x, top);
        ctx.lineTo(x, top + inner);
        ctx.stroke();
        ctx.fillStyle = colors["--ink"];
        ctx.textAlign = a === 0 ? "left" : a === axes.length - 1 && axes.length > 1 ? "right" : "center";
        ctx.textBaseline = "alphabetic";
        const room = (width - 90) / Math.max(axes.length - 1, 1) - 6;
        const shift = a === 0 ? -36 : a === axes.length - 1 && axes.length > 1 ? 46 : 0;
        ctx.fillText(fit(ctx, name, room + (shift ? 20 : 0)), x + shift, top - 16);
        ctx.fillStyle = colors["--faint"];
        ctx.textAlign = "left";
        ctx.textBaseline = "middle";
        for (const [value, text] of ticks(scale, 5)) {
          const y = top + (1 - part(scale, value)) * inner;
          ctx.strokeStyle = colors["--paper"];
          ctx.lineWidth = 4;
          ctx.lineJoin = "round";
          ctx.strokeText(fit(ctx, text, Math.min(room - 4, a === axes.length - 1 ? 46 : room - 4)), x + 4, y);
          ctx.fillStyle = colors["--ink"];
          ctx.fillText(fit(ctx, text, Math.min(room - 4, a === axes.length - 1 ? 46 : room - 4)), x + 4, y);
        }
        const range = ranges.get(a);
        if (range) {
          ctx.fillStyle = colors["--complete"];
          ctx.globalAlpha = 0.3;
          ctx.fillRect(x - 6, top + (1 - range[1]) * inner, 12, Math.max((range[1] - range[0]) * inner, 2));
          ctx.globalAlpha = 1;
        }
      });
      told.textContent = ranges.size
        ? `${kept.size.toLocaleString("en")} of ${order.length.toLocaleString("en")} scored trials are in the chosen ranges; click an axis to clear its range.`
        : "Each line is a scored trial; darker (brighter in dark mode) is better. Drag along an axis to keep only trials in that range.";
      return order.filter((i) => kept.has(i)).flatMap((i) => axes.flatMap(({ scale, values }, a) => (values[i] === null ? [] : [[i, at(width, a), top + (1 - part(scale, values[i])) * inner]])));
    }, over: (ctx, width, height, i) => { ctx.lineWidth = 2.5; line(ctx, width, height, i); },
    down: (event, box) => {
      const x = event.clientX - box.left, a = axes.findIndex((_, k) => Math.abs(at(box.width, k) - x) < 14);
      if (a < 0) return false;
      const where = 1 - (event.clientY - box.top - top) / (box.height - top - bottom);
      dragged = { a, from: Math.min(Math.max(where, 0), 1) };
      ranges.delete(a);
      plot.redraw();
      return true;
    },
    move: (event, box) => {
      if (!dragged) return false;
      const where = Math.min(Math.max(1 - (event.clientY - box.top - top) / (box.height - top - bottom), 0), 1);
      ranges.set(dragged.a, [Math.min(where, dragged.from), Math.max(where, dragged.from)]);
      plot.redraw();
      return true;
    },
    up: () => {
      const range = dragged && ranges.get(dragged.a);
      if (range && range[1] - range[0] < 0.01) ranges.delete(dragged.a);
      dragged = null;
      plot.redraw();
    } });
  }

  function timeline(place) {
    const timed = every.filter((i) => study.began[i] !== null);
    if (!timed.length) return;
    const last = Math.max(...timed.map((i) => study.ended[i] ?? study.began[i])), begin = Math.min(...timed.map((i) => study.began[i]));
    const until = (i) => study.ended[i] ?? Math.max(last, study.began[i]);
    // Trials that ran at the same time on one host stand in rows of their own.
    const lanes = [];
    for (const i of [...timed].sort((a, b) => (study.host[a] < study.host[b] ? -1 : study.host[a] > study.host[b] ? 1 : study.began[a] - study.began[b]))) {
      let lane = lanes.find((each) => each.host === study.host[i] && each.until <= study.began[i] + 1e-3);
      if (!lane) lanes.push((lane = { host: study.host[i], until: 0, trials: [] }));
      lane.trials.push(i);
      lane.until = until(i);
    }
    const span = Math.max(last - begin, 1), unit = span > 7200 ? ["hours", 3600] : span > 180 ? ["minutes", 60] : ["seconds", 1];
    const xs = { low: 0, high: span / unit[1], log: false }, row = Math.max(Math.min(22, 480 / lanes.length), 3);
    makePlot(place, { height: lanes.length * row + 64, label: "Trials over time", xTitle: `${unit[0]} since the first trial began`, yTitle: "host", draw: (ctx, width, height) => {
      const names = Math.min(width * 0.22, 130), box = { left: names, top: 6, width: width - names - 14, height: lanes.length * row };
      const { x } = frame(ctx, box, xs, { low: 0, high: 1, words: [], log: false });
      const points = [];
      let before = null;
      lanes.forEach((lane, l) => {
        const y = box.top + l * row;
        if (lane.host !== before) {
          before = lane.host;
          ctx.fillStyle = colors["--faint"];
          ctx.textAlign = "left";
          ctx.textBaseline = "middle";
          ctx.fillText(fit(ctx, lane.host || "host unknown", names - 24), 16, y + Math.max(row / 2, 7));
        }
        for (const i of lane.trials) {
          const left = x((study.began[i] - begin) / unit[1]), right = Math.max(x((until(i) - begin) / unit[1]), left + 2);
          ctx.fillStyle = i === winner ? colors["--winner"] : colors[colorOf[study.state[i]]];
          ctx.globalAlpha = study.state[i] === "complete" || i === winner ? 0.9 : 0.55;
          ctx.fillRect(left, y + 1, Math.max(right - left - 1, 1.5), Math.max(row - 2, 1.5));
          ctx.globalAlpha = 1;
          points.push([i, left, y + row / 2, right - left]);
        }
      });
      return points;
    }, over: (ctx, width, height, i) => {
      const names = Math.min(width * 0.22, 130), wide = width - names - 14, l = lanes.findIndex((lane) => lane.trials.includes(i));
      if (l < 0) return;
      const left = names + ((study.began[i] - begin) / span) * wide, right = names + ((until(i) - begin) / span) * wide;
      ctx.strokeRect(left, 6 + l * row + 1, Math.max(right - left, 3), Math.max(row - 2, 2));
    } });
  }

  function logits(place) {
    const { edges, counts } = study.logits;
    const xs = { low: edges[0], high: edges[edges.length - 1], log: false }, ys = { low: 0, high: Math.max(...counts) * 1.05, log: false };
    makePlot(place, { height: 220, label: "Histogram of the logits", xTitle: "logit of the winner's rank in the other half", yTitle: "splits in halves", draw: (ctx, width, height) => {
      const box = { left: 72, top: 8, width: width - 82, height: height - 50 };
      const { x, y } = frame(ctx, box, xs, ys);
      counts.forEach((count, k) => {
        ctx.fillStyle = edges[k] + edges[k + 1] <= 0 ? colors["--failed"] : colors["--complete"];
        ctx.globalAlpha = 0.8;
        const left = x(edges[k]), right = x(edges[k + 1]);
        ctx.fillRect(left + 0.5, y(count), Math.max(right - left - 1, 1), box.top + box.height - y(count));
        ctx.globalAlpha = 1;
      });
      ctx.strokeStyle = colors["--ink"];
      ctx.lineWidth = 1;
      ctx.beginPath();
      ctx.moveTo(x(0), box.top);
      ctx.lineTo(x(0), box.top + box.height);
      ctx.stroke();
    } });
  }

  const at = (name, make) => { const place = document.getElementById(name); if (place) make(place); };
  refreshColors();
  at("history", history);
  at("slices", slices);
  at("parallel", (place) => parallel(place, document.getElementById("parallel-told")));
  at("timeline", timeline);
  at("logits", (place) => study.logits && logits(place));
  const redraw = () => { refreshColors(); plots.forEach((plot) => plot.redraw()); };
  redraw();
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const trials = document.getElementById("trials");
  if (trials) trials.addEventListener("rowchosen", (event) => choose(event.detail), true);
  document.documentElement.dataset.plots = String(plots.length);
})();
