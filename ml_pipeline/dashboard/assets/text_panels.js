// Settings side by side, logs, and reports.
import { element, sayIfItScrolls, setText, stored, store } from "./elements.js";
import { number } from "./format.js";
import { label, nameNode } from "./run_names.js";
import { get, reportAddress } from "./server.js";

export class SettingsPanel {
  constructor(place, { onFailure }) {
    this.onFailure = onFailure;
    this.only = element("input", { type: "checkbox", id: "only-differing" });
    this.only.checked = stored("only differing", true);
    this.only.addEventListener("change", () => { store("only differing", this.only.checked); this.draw(); });
    this.count = element("span", { class: "hint" });
    this.table = element("div", { class: "scroll" });
    place.replaceChildren(element("div", { class: "panel-tools" }, element("label", {}, this.only, " Only what differs"), this.count), ...sayIfItScrolls(this.table));
  }

  async load({ runs }) {
    this.runs = runs;
    try {
      this.content = runs.length ? await get("settings", { run: runs }) : null;
    } catch (error) {
      this.onFailure(error);
      return;
    }
    if (this.runs === runs) this.draw();
  }

  draw() {
    const { runs, content } = this;
    if (!content) { this.table.replaceChildren(element("p", { class: "empty" }, "Choose runs in the list.")); setText(this.count, ""); return; }
    const differing = content.rows.filter((row) => row.differs).length;
    const isAlone = runs.length === 1;
    const rows = this.only.checked ? content.rows.filter((row) => row.differs) : content.rows;
    setText(this.count, `${differing} of ${content.rows.length} settings differ${isAlone ? " from the defaults" : ""}`);
    const notes = Object.values(content.notes).map((note) => element("p", { class: "message" }, note));
    const body = rows.map((row) => element("tr", { class: row.differs ? "differs" : "" }, element("th", { scope: "row" }, row.name),
      ...[...row.values, ...(isAlone ? [row.default] : [])].map((value) => element("td", { class: value === null ? "none" : "" }, value === null ? "–" : value))));
    const table = element("table", { class: "settings" },
      element("thead", {}, element("tr", {}, element("th", {}, "Setting"), ...runs.map((run) => element("th", { scope: "col" }, nameNode(run))), isAlone ? element("th", { scope: "col" }, "Default") : null)),
      element("tbody", {}, ...body));
    this.table.replaceChildren(...notes, rows.length ? table : element("p", { class: "empty" }, content.rows.length ? (isAlone ? "Every setting of this run is the default." : "These runs have the same settings.") : "No settings were written yet."));
  }

  remove() {
    this.runs = null;
  }
}

const everySeconds = 1;
const mostLetters = 2e6;

export class LogPanel {
  constructor(place, { onFailure }) {
    this.onFailure = onFailure;
    this.parts = ["run", "output"].map((which) => {
      const text = element("pre", { tabindex: "0", "aria-label": which === "run" ? "Log of the run" : "Output of the process" });
      const earlier = element("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.loadEarlier(part) }, "Show earlier lines");
      const head = element("div", { class: "chart-head" }, element("h3", {}, which === "run" ? "run.log" : "output.log"), earlier);
      const part = { which, text, earlier, node: element("section", { class: "log", hidden: true }, head, text), start: 0, end: null };
      return part;
    });
    this.empty = element("p", { class: "empty" });
    place.replaceChildren(...this.parts.map(({ node }) => node), this.empty);
  }

  async load({ current }) {
    clearTimeout(this.timer);
    this.run = current;
    for (const part of this.parts) { part.end = null; part.node.hidden = true; part.text.replaceChildren(); }
    this.empty.hidden = Boolean(current);
    setText(this.empty, "Choose a run in the list.");
    if (current) await this.follow();
  }

  async follow() {
    const name = this.run;
    for (const part of this.parts) {
      try {
        const found = await get("log", { run: name, file: part.which, after: part.end });
        if (this.run !== name) return;
        this.take(part, found);
      } catch (error) {
        if (this.run !== name) return;
        this.onFailure(error);
      }
    }
    const any = this.parts.some(({ node }) => !node.hidden);
    this.empty.hidden = any;
    if (!any) setText(this.empty, "Nothing was written to a log yet.");
    this.timer = setTimeout(() => { if (this.run === name) this.follow(); }, everySeconds * (document.hidden ? 10000 : 1000));
  }

  take(part, found) {
    const goesOn = part.end !== null && found.start === part.end;
    if (goesOn && !found.text) return;
    const below = part.text.scrollHeight - part.text.scrollTop - part.text.clientHeight < 30;
    if (!goesOn) { part.text.replaceChildren(); part.start = found.start; }
    part.text.append(found.text);
    part.end = found.end;
    if (part.text.textContent.length > mostLetters) part.text.textContent = part.text.textContent.slice(-mostLetters / 2);
    part.earlier.hidden = part.start === 0;
    part.node.hidden = found.size === 0;
    if (below || !goesOn) part.text.scrollTop = part.text.scrollHeight;
  }

  async loadEarlier(part) {
    try {
      const found = await get("log", { run: this.run, file: part.which, before: part.start });
      const before = part.text.scrollHeight;
      part.text.prepend(found.text);
      part.start = found.start;
      part.earlier.hidden = part.start === 0 || !found.text;
      part.text.scrollTop += part.text.scrollHeight - before;
    } catch (error) {
      this.onFailure(error);
    }
  }

  remove() {
    clearTimeout(this.timer);
    this.run = null;
  }
}

function noReport(run, status) {
  if (status === "failed") return `${run} failed, and has no report.`;
  if (status === "running" || status === "queued") return `${run} has no report yet; it is written when training ends.`;
  return `${run} has no report.`;
}

export class ReportPanel {
  constructor(place, { onFailure }) {
    this.onFailure = onFailure;
    this.figures = element("div", { class: "scroll" });
    this.frame = element("div", { class: "report" });
    place.replaceChildren(...sayIfItScrolls(this.figures), this.frame);
  }

  async load({ runs, current, status }) {
    this.asked = runs;
    this.status = status;
    let answer = { rows: [], reports: [] };
    try {
      if (runs.length) answer = await get("evaluation", { run: runs });
    } catch (error) {
      this.onFailure(error);
      return;
    }
    if (this.asked !== runs) return;
    const isBelow = runs.length === 1 && answer.reports.includes(current); // in the report itself
    const table = answer.rows.length && !isBelow ? element("table", { class: "settings figures" },
      element("thead", {}, element("tr", {}, element("th", {}, "Evaluation"), ...runs.map((run) => element("th", { scope: "col", class: "number", title: run }, nameNode(run))))),
      element("tbody", {}, ...answer.rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row.name),
        ...row.values.map((value) => element("td", { class: "number" }, row.is_share && value !== null ? `${number(value * 100)} %` : number(value))))))) : null;
    this.figures.replaceChildren(...(table ? [element("details", { open: true }, element("summary", {}, "Figures of the evaluation"), table)] : []));
    if (!runs.length) this.frame.replaceChildren(element("p", { class: "empty" }, "Choose a run in the list."));
    else if (!answer.reports.includes(current)) this.frame.replaceChildren(element("p", { class: "empty" }, noReport(current, status)));
    else {
      const address = reportAddress(current);
      this.frame.replaceChildren(
        element("div", { class: "chart-head" }, element("h3", {}, `Report of ${label(current)}`), element("a", { href: address, target: "_blank", rel: "noopener" }, "Open in a new tab")),
        element("iframe", { src: `${address}&framed=1`, sandbox: "allow-scripts", title: `Report of ${current}` }));
    }
  }

  remove() {
    this.asked = null;
  }
}
