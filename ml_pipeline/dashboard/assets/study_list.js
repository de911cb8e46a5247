// The list of studies: how far each is, how fast, and its best value.
import { element, setText } from "./elements.js";
import { compact, duration, number, percent } from "./format.js";
import { RowList } from "./row_list.js";
import { nameNode } from "./run_names.js";

const headings = [["Study", ""], ["State", ""], ["Trials", ""], ["Trials/h", "number wide"], ["Left", "number wide"], ["Best value", "number"]];

export class StudyList extends RowList {
  constructor({ onOpen }) { super("studies", headings, { label: "Study", onOpen }); }

  makeCells(name) {
    const cells = { state: element("span", { class: "state" }), bar: element("i", { class: "fill" }), share: element("span", { class: "share" }) };
    for (const key of ["pace", "left"]) cells[key] = element("td", { class: "number wide" });
    cells.best = element("span", {});
    cells.unit = element("small", { class: "unit" });
    cells.columns = [element("td", { class: "name" }, nameNode(name, { class: "title", title: name })), element("td", {}, cells.state),
      element("td", {}, element("span", { class: "track", "aria-hidden": "true" }, cells.bar), cells.share), cells.pace, cells.left, element("td", { class: "number" }, cells.best, cells.unit)];
    return cells;
  }

  fillCells(cells, study) {
    setText(cells.state, study.status);
    cells.state.dataset.state = study.status;
    cells.bar.style.width = `${(study.progress || 0) * 100}%`;
    setText(cells.share, study.n_trials === null ? "–" : `${study.finished ?? 0} of ${study.n_trials}`);
    setText(cells.pace, compact(study.trials_per_hour_last_hour ?? study.trials_per_hour));
    setText(cells.left, duration(study.seconds_left));
    setText(cells.best, number(study.best?.value));
    setText(cells.unit, study.best && study.value_unit ? study.value_unit : "");
    return `${cells.share.textContent} trials, ${percent(study.progress)}`;
  }
}
