// The list of studies: progress, speed and best value.
import { element, setText } from "./elements.js";
import { compact, duration, number, percent } from "./format.js";
import { RowList } from "./row_list.js";
import { nameNode } from "./run_names.js";

const pace = (study) => study.trials_per_hour_last_hour ?? study.trials_per_hour;
const columns = [
  { label: "Study", kind: "", value: (study) => study.name, up: true },
  { label: "State", kind: "", value: (study) => study.status, up: true },
  { label: "Trials", kind: "", value: (study) => study.finished, title: "Finished trials, of the requested number" },
  { label: "Trials/h", kind: "number wide", value: pace, title: "Trials per hour, of the last hour" },
  { label: "Left", kind: "number wide", value: (study) => study.seconds_left, up: true, title: "Time until the study ends, at this speed" },
  { label: "Best value", kind: "number", value: (study) => study.best?.value, title: "Best value of a trial, with its unit: mean return, log return or Sharpe ratio" },
];

export class StudyList extends RowList {
  constructor({ onOpen }) { super("studies", columns, { label: "Study", onOpen }); }

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
    setText(cells.pace, compact(pace(study)));
    setText(cells.left, duration(study.seconds_left));
    setText(cells.best, number(study.best?.value));
    setText(cells.unit, study.best && study.value_unit ? study.value_unit : "");
    return `${cells.share.textContent} trials, ${percent(study.progress)}`;
  }
}
