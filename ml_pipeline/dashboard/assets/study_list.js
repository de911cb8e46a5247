// The list of studies above that of runs: one row each, opened by a click or by keys.
import { byId, element, setText } from "./elements.js";
import { compact, duration, number, percent } from "./format.js";
import { nameNode } from "./run_names.js";

const headings = ["Study", "State", "Trials", "Trials/h", "Left", "Best"];

export class StudyList {
  constructor({ onOpen }) {
    this.onOpen = onOpen;
    this.studies = new Map();
    this.rows = new Map();
    this.current = null;
    this.body = byId("studies").tBodies[0];
    byId("studies").tHead.replaceChildren(element("tr", {}, ...headings.map((heading, i) => element("th", { scope: "col", class: i > 2 ? `number ${i === 5 ? "" : "wide"}` : "" }, heading))));
    this.body.addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row) this.onOpen(row.dataset.study); });
    this.body.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const row = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") this.onOpen(row.dataset.study);
    else if (event.key === "ArrowDown") row.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") row.previousElementSibling?.focus();
    else return;
    event.preventDefault();
  }

  update(studies) {
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.study : null;
    this.studies = new Map(studies.map((study) => [study.name, study]));
    for (const name of [...this.rows.keys()]) if (!this.studies.has(name)) this.rows.delete(name);
    for (const study of studies) this.fill(study);
    const nodes = studies.map(({ name }) => this.rows.get(name).node);
    if (nodes.length !== this.body.childElementCount || nodes.some((node, i) => node !== this.body.children[i])) this.body.replaceChildren(...nodes);
    if (focused) this.rows.get(focused)?.node.focus();
    byId("studies-part").hidden = !studies.length;
    this.mark(this.current);
  }

  fill(study) {
    let row = this.rows.get(study.name);
    if (!row) this.rows.set(study.name, (row = this.makeRow(study.name)));
    const { cells } = row, pace = study.trials_per_hour_last_hour ?? study.trials_per_hour;
    setText(cells.state, study.status);
    cells.state.dataset.state = study.status;
    row.node.title = study.reason || "";
    cells.bar.style.width = `${(study.progress || 0) * 100}%`;
    setText(cells.share, study.n_trials === null ? "–" : `${study.finished ?? 0} of ${study.n_trials}`);
    row.node.setAttribute("aria-label", `Study ${study.name}, ${study.status}, ${cells.share.textContent} trials, ${percent(study.progress)}`);
    setText(cells.pace, compact(pace));
    setText(cells.left, duration(study.seconds_left));
    setText(cells.best, number(study.best?.value));
  }

  makeRow(name) {
    const cells = { state: element("span", { class: "state" }), bar: element("i", { class: "fill" }), share: element("span", { class: "share" }) };
    for (const key of ["pace", "left"]) cells[key] = element("td", { class: "number wide" });
    cells.best = element("td", { class: "number" });
    const node = element("tr", { tabindex: "0", "data-study": name, "aria-current": "false" },
      element("td", { class: "name" }, nameNode(name, { class: "title", title: name })), element("td", {}, cells.state),
      element("td", {}, element("span", { class: "track", "aria-hidden": "true" }, cells.bar), cells.share), cells.pace, cells.left, cells.best);
    return { node, cells };
  }

  mark(current) {
    this.current = current;
    for (const [name, { node }] of this.rows) {
      node.classList.toggle("current", name === current);
      node.setAttribute("aria-current", String(name === current));
    }
  }
}
