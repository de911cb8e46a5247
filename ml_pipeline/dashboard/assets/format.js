// Formats of numbers and times.
const dash = "–";
const si = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return dash;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 10000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(digits)));
}

// An amount of the account's currency.
export function money(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return dash;
  const size = Math.abs(value);
  return size > 0 && size < 1 ? number(value, 3) : value.toLocaleString("en", { maximumFractionDigits: size < 1e6 ? 2 : 0 });
}

// Tick labels of an axis, with enough digits to tell them apart.
export function marks(values) {
  for (let digits = 3; digits < 9; digits++) {
    const texts = values.map((value) => (value === null ? "" : compact(value, digits)));
    if (digits === 8 || new Set(texts).size === texts.length || values.includes(null)) return texts;
  }
}

// Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or powers only if there are many; within a range that has
// fewer than two of these, evenly spaced ticks. most: number of ticks with enough room.
export function logMarks(low, high, most) {
  const decades = Math.log10(high / low), found = [];
  const within = decades * 3 > most ? [1] : [1, 2, 5], jump = Math.max(1, Math.ceil((decades * within.length) / most));
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += jump) {
    for (const each of within) {
      const mark = Number(`${each}e${power}`);
      if (mark >= low && mark <= high) found.push(mark);
    }
  }
  if (found.length > 1) return found;
  const raw = (high - low) / Math.max(most - 1, 1), size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= raw), evenly = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) evenly.push(Number((k * step).toPrecision(12)));
  return evenly;
}

export function compact(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return dash;
  for (const [size, letter] of si) if (Math.abs(value) >= size * 0.99995) return `${Number((value / size).toPrecision(digits))}${letter}`;
  return String(Number(value.toPrecision(digits)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return dash;
  if (seconds < 0.9995) return seconds === 0 ? "0s" : `${Math.round(seconds * 1000)}ms`;
  if (seconds < 10 && seconds % 1) return `${Number(seconds.toFixed(1))}s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [size, letter] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
    if (rest >= size) parts.push(`${Math.floor(rest / size)}${letter}`);
    else if (parts.length) parts.push("");
    rest %= size;
  }
  return parts.slice(0, 2).filter(Boolean).join(" ");
}

export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return dash;
  const value = share * 100;
  return `${value > 0 && value < 1 ? value.toFixed(1) : Math.floor(value)} %`;
}

// A return or a weight with its sign.
export function signedPercent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return dash;
  return `${share > 0 ? "+" : share < 0 ? "−" : ""}${Math.abs(share * 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} %`;
}

export function when(text) {
  const time = new Date(text);
  return text && !Number.isNaN(time.getTime()) ? time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : dash;
}
