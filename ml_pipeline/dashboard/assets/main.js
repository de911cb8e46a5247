// The page: selected runs, the open view, and updates from the server.
import { ChartGrid } from "./chart_grid.js";
import { CurrentRun } from "./current_run.js";
import { byId, colorOf, element, setText, store, stored } from "./elements.js";
import { number } from "./format.js";
import { metricName } from "./metric_names.js";
import { RunList } from "./run_list.js";
import { nameNode } from "./run_names.js";
import { get, mostRuns, root, Stream } from "./server.js";
import { SessionList } from "./session_list.js";
import { SessionView } from "./session_view.js";
import { StudyList } from "./study_list.js";
import { StudyView } from "./study_view.js";
import { LogPanel, ReportPanel, SettingsPanel } from "./text_panels.js";
import { TimePanel } from "./time_panel.js";

const views = { curves: "Curves", time: "Time spent", machine: "Machine", settings: "Settings", log: "Log", report: "Report" };
const usual = ["rollout/mean_return_100", "eval/score", "train/policy_loss", "train/value_loss", "train/entropy", "train/explained_variance"];
const machine = ["system/cpu_percent", "system/rss_mb", "system/gpu_percent", "system/gpu_memory_mb", "workers/count", "time/n_envs", "time/steps_per_second"];
const chosenAtFirst = 4;

const state = {
  slots: new Map(), // selected runs, and the color of each
  current: null,
  study: null, // shown instead of runs
  session: null, // a trading session, shown instead of runs
  view: "curves",
  axis: stored("axis", "step") === "time" ? "time" : "step",
  smoothing: Math.min(Math.max(Number(stored("smoothing", 0)) || 0, 0), 0.99),
  metrics: stored("charts", usual),
};
if (!Array.isArray(state.metrics)) state.metrics = usual;
let panel = null; // of the open view
let grid = null; // its charts, if it has any
const opened = location.hash; // before the page sets its own
let connected = null; // key of the open stream
let isQuiet = true; // no history entry: the page follows its address, or a run is gone

const onFailure = (error) => say(error.message);

const list = new RunList({
  onOnly: (name) => choose([name], name),
  onToggle: (name) => (state.slots.has(name) ? choose([...state.slots.keys()].filter((each) => each !== name), state.current) : choose([...state.slots.keys(), name], name)),
  emptyText: `No runs in ${root} yet. Start one with: ml-pipeline train`,
});
const current = new CurrentRun(byId("current"), { onSaid: say, onStudy: (name) => openFolder("study", name), runNamed: (name) => list.runs.get(name) });
const sessions = new SessionList({ onOpen: (name) => openFolder("session", name) });
const session = new SessionView(byId("session"), { onFailure });
const studies = new StudyList({ onOpen: (name) => openFolder("study", name) });
const study = new StudyView(byId("study"), { onRun: (name) => choose([name], name), onFailure });
const folders = {
  study: { list: studies, view: study, missing: (name) => `${root} has no study "${name}".` },
  session: { list: sessions, view: session, missing: (name) => `There is no trading session "${name}".` },
};
const stream = new Stream(received, (now) => {
  const live = byId("live");
  live.dataset.state = now;
  setText(live, now === "live" ? "live" : "reconnecting");
});

// until: returns true once the message is out of date, checked when runs change; without it, good news disappears after 8 s.
function say(text, isBad = true, until = null) {
  say.until = until;
  const message = byId("message");
  message.hidden = !text;
  message.classList.toggle("bad", isBad);
  setText(message, text || "");
  clearTimeout(say.timer);
  if (text && !isBad && !until) say.timer = setTimeout(() => say(""), 8000);
}

function choose(names, now) {
  const kept = names.filter((name) => list.runs.has(name));
  if (names.length && !kept.length && (state.study || state.session)) { say("The folder of this trial is not here."); return; }
  if (kept.length > mostRuns) { say(`At most ${mostRuns} runs are shown at once.`); list.mark(); return; }
  const slots = new Map(), used = new Set();
  for (const name of kept) if (state.slots.has(name)) { slots.set(name, state.slots.get(name)); used.add(state.slots.get(name)); }
  if (kept.length === 1) { slots.clear(); used.clear(); }
  for (const name of kept) {
    if (slots.has(name)) continue;
    let slot = 0;
    while (used.has(slot)) slot++;
    used.add(slot);
    slots.set(name, slot);
  }
  state.slots = new Map(kept.map((name) => [name, slots.get(name)]));
  state.current = kept.includes(now) ? now : kept[0] || null;
  say("");
  closeFolders();
  list.choose(state.slots, state.current);
  current.show(list.runs.get(state.current));
  drawLegend();
  keepAddress();
  show();
}

// Show one study or trading session instead of runs.
function openFolder(kind, name) {
  const { list: those, view, missing } = folders[kind];
  if (!those.items.has(name)) { say(missing(name)); return; }
  closeFolders(kind);
  state[kind] = name;
  document.documentElement.dataset.shows = kind;
  those.mark(name);
  view.show(those.items.get(name));
  say("");
  keepAddress();
  byId("main").scrollTop = 0;
}

function closeFolders(except = null) {
  delete document.documentElement.dataset.shows;
  for (const [kind, { list: those, view }] of Object.entries(folders)) {
    if (kind === except) continue;
    state[kind] = null;
    those.mark(null);
    view.show(null);
  }
}

function showFolders(kind, found) {
  const { list: those, view } = folders[kind];
  those.update(found);
  if (state[kind] && !those.items.has(state[kind])) quietly(() => choose([...state.slots.keys()], state.current));
  else if (state[kind]) view.show(those.items.get(state[kind]));
}

function showStudies(found) {
  document.documentElement.dataset.studies = found.length ? "some" : "none";
  showFolders("study", found);
}

function drawLegend() {
  const several = state.slots.size > 1;
  byId("legend").replaceChildren(...(several ? [...state.slots] : []).map(([name, slot]) => element("span", { role: "listitem", class: "chip", title: name },
    element("i", { style: { background: colorOf(slot) } }), nameNode(name, { class: "chip-name" }), bestOf(list.runs.get(name)),
    element("button", { type: "button", "aria-label": `Take ${name} out`, onclick: () => list.onToggle(name) }, "×"))));
}

function bestOf(run) {
  if (!run || run.best_score === null) return null;
  return element("b", { class: "chip-score", title: "Best score of an evaluation" }, `best ${number(run.best_score)}${run.score_unit ? ` ${run.score_unit}` : ""}`);
}

function quietly(act) {
  const before = isQuiet;
  isQuiet = true;
  try { act(); } finally { isQuiet = before; }
}

// Write the selection into the address. A selection by the user becomes a history entry.
function keepAddress() {
  const parts = new URLSearchParams();
  if (state.session) parts.set("session", state.session);
  else if (state.study) parts.set("study", state.study);
  else for (const name of state.slots.keys()) parts.append("run", name);
  if (!state.study && !state.session && state.view !== "curves") parts.set("view", state.view);
  if (`#${parts}` === location.hash) return;
  history[isQuiet ? "replaceState" : "pushState"](null, "", `#${parts}`);
}

// Show the selection in the address; without one, select runs as when the page is opened.
function follow(hash) {
  const address = new URLSearchParams(hash.slice(1));
  const named = address.getAll("run"), asked = named.filter((name) => list.runs.has(name));
  const own = list.order.filter((name) => !list.runs.get(name).study);
  const running = own.filter((name) => list.runs.get(name).status === "running").slice(0, chosenAtFirst);
  const names = asked.length ? asked : running.length ? running : own.slice(0, 1);
  const study = address.get("study") || (address.get("session") || names.length ? null : [...studies.items.keys()][0]);
  const session = address.get("session") || (names.length || study ? null : [...sessions.items.keys()][0]);
  const view = views[address.get("view")] ? address.get("view") : "curves";
  quietly(() => {
    choose(names, names[0]);
    if (study) openFolder("study", study);
    if (session) openFolder("session", session);
    if (!study && !session && view !== state.view) open(view);
  });
  const missing = named.filter((name) => !list.runs.has(name));
  if (missing.length) say(`${root} has no run "${missing[0]}".`);
}

// After Back, Forward, or an address typed into this tab.
function addressChanged() {
  if (location.hash === "#main") quietly(keepAddress); // the link to the charts
  else follow(location.hash);
}

// Views

function makeTabs() {
  const tabs = byId("tabs");
  tabs.replaceChildren(...Object.entries(views).map(([key, label]) => element("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => open(key) }, label)));
  tabs.addEventListener("keydown", (event) => {
    const keys = Object.keys(views), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = keys[(keys.indexOf(state.view) + by + keys.length) % keys.length];
    open(next);
    byId(`tab-${next}`).focus();
    event.preventDefault();
  });
}

function open(view, { quietly = false } = {}) {
  if (panel && view === state.view) return;
  panel?.remove();
  grid = null;
  state.view = view;
  for (const key of Object.keys(views)) {
    const tab = byId(`tab-${key}`), isOpen = key === view;
    tab.setAttribute("aria-selected", String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
  }
  const place = byId("panel");
  place.setAttribute("aria-labelledby", `tab-${view}`);
  place.dataset.view = view;
  byId("chart-tools").dataset.view = view;
  const makers = { time: TimePanel, settings: SettingsPanel, log: LogPanel, report: ReportPanel };
  if (makers[view]) panel = new makers[view](place, { onFailure });
  else panel = grid = makeGrid(place, view);
  byId("whole").hidden = true;
  keepAddress();
  if (!quietly) show();
}

function makeGrid(place, view) {
  const made = new ChartGrid(place, {
    onClose: view === "curves" ? closeChart : null,
    onZoomed: (range) => { byId("whole").hidden = !range; },
    onFailure,
    unitOf: (run) => list.runs.get(run)?.score_unit,
    emptyText: ({ runs, drawn, loaded }) => {
      if (drawn.length) return "";
      if (!runs.length) return list.runs.size ? "Choose runs in the list: their curves are drawn over each other." : "Runs appear here as soon as they begin.";
      if (!loaded) return "";
      return view === "machine" ? "These runs have no metrics of the machine." : "These runs have written no metrics yet.";
    },
  });
  made.view.axis = state.axis;
  return made;
}

async function show() {
  const chosen = { runs: [...state.slots.keys()], current: state.current, status: list.runs.get(state.current)?.status, axis: state.axis };
  if (grid) {
    grid.view.slots = state.slots;
    grid.view.axis = state.axis;
    grid.smoothing = state.smoothing;
    grid.metrics = state.view === "machine" ? machine : state.metrics;
    const shown = grid;
    await shown.load();
    if (grid !== shown) return; // another view is open now
    drawChoices();
  } else {
    await panel.load(chosen);
  }
  connect();
}

// One stream for the current view. Changing to a view without charts does not reopen it.
function connect() {
  const wanted = { runs: [...state.slots.keys()], metrics: grid ? grid.metrics : [] };
  const key = JSON.stringify([wanted, grid && [...grid.data].map(([run, { generation }]) => [run, generation])]);
  if (key === connected) return;
  connected = key;
  const server = stream.position.split(";")[0];
  const rows = grid ? grid.position(server) : `${server};${wanted.runs.map(() => "0.0.0").join(",")}`;
  stream.open({ ...wanted, position: rows });
}

function received(message) {
  if (message.studies) showStudies(message.studies);
  if (message.sessions) showFolders("session", message.sessions);
  if (message.runs) {
    list.update(message);
    document.documentElement.dataset.runs = list.runs.size ? "some" : "none";
    if (message.problem) say(message.problem);
    else if (say.until?.()) say("");
    const gone = [...state.slots.keys()].filter((name) => !list.runs.has(name));
    if (gone.length) quietly(() => choose([...state.slots.keys()].filter((name) => !gone.includes(name)), state.current));
    else if (!state.slots.size && !received.chose && (list.runs.size || studies.items.size || sessions.items.size)) chooseFirst();
    const now = list.runs.get(state.current);
    current.show(now);
    if (state.view === "report" && now && panel.status !== now.status) show();
  }
  if (message.rows) {
    if (grid) grid.append(message.rows);
    else if (state.view === "time") panel.soon();
    if (grid && Object.values(message.rows).some(({ names }) => names)) drawChoices();
  }
}

// Tools of the charts

function drawChoices() {
  const select = byId("add-chart"), names = new Set([...grid.data.values()].flatMap((run) => run.names));
  const rest = [...names].filter((name) => !state.metrics.includes(name) && name !== "time/global_step").sort();
  const key = rest.join("\n");
  if (key === drawChoices.key) return;
  drawChoices.key = key;
  const groups = new Map();
  for (const name of rest) {
    const group = name.includes("/") ? name.split("/")[0] : "other";
    groups.set(group, [...(groups.get(group) || []), name]);
  }
  select.replaceChildren(element("option", { value: "" }, "choose a metric"), ...[...groups].map(([group, members]) => element("optgroup", { label: group }, ...members.map((name) => element("option", { value: name, title: name }, metricName(name).title)))),
    element("option", { value: " usual" }, "the usual charts"));
}

function setCharts(metrics) {
  state.metrics = metrics;
  store("charts", metrics);
  drawChoices.key = null;
  show();
}

const closeChart = (metric) => setCharts(state.metrics.filter((each) => each !== metric));

function listen() {
  byId("add-chart").addEventListener("change", (event) => {
    const { value } = event.target;
    event.target.value = "";
    if (value) setCharts(value === " usual" ? usual : [...state.metrics, value]);
  });
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      state.axis = button.dataset.axis;
      store("axis", state.axis);
      if (grid) grid.zoom(null);
      drawTools();
      show();
    });
  }
  const slider = byId("smoothing");
  slider.addEventListener("input", () => {
    state.smoothing = Number(slider.value);
    store("smoothing", state.smoothing);
    drawTools();
    if (grid) { grid.smoothing = state.smoothing; grid.loadSoon(40); }
  });
  addEventListener("popstate", addressChanged);
  byId("whole").addEventListener("click", () => grid?.zoom(null));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && grid?.view.zoom && !document.querySelector("dialog[open]")) grid.zoom(null); });
  byId("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("ml-pipeline theme", document.documentElement.dataset.theme); } catch { /* as long as the page is open */ }
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

function redraw() {
  panel.redraw?.();
  study.redraw();
  session.redraw();
}

function drawTools() {
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === state.axis));
  byId("smoothing").value = state.smoothing;
  setText(byId("smoothing-value"), state.smoothing ? state.smoothing.toFixed(2) : "off");
}

function chooseFirst() {
  received.chose = true;
  follow(opened);
  isQuiet = false;
}

async function begin() {
  makeTabs();
  drawTools();
  listen();
  const view = new URLSearchParams(opened.slice(1)).get("view");
  const first = await get("runs").catch((error) => { onFailure(error); return null; });
  if (first) {
    showStudies(first.studies);
    showFolders("session", first.sessions);
    list.update({ runs: first.runs, removed: [], order: first.runs.map(({ name }) => name) });
    document.documentElement.dataset.runs = list.runs.size ? "some" : "none";
    if (first.problem) say(first.problem);
    stream.position = first.position;
  }
  open(views[view] ? view : "curves", { quietly: list.runs.size > 0 });
  if (list.runs.size || studies.items.size || sessions.items.size) chooseFirst();
  document.documentElement.dataset.ready = "true";
}

begin();
