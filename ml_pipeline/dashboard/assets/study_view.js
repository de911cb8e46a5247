// A study: progress, best trial, running trials, failures, and all trials, each of which opens its run.
import { element, setText } from "./elements.js";
import { duration, number, percent, when } from "./format.js";
import { get, studyReportAddress } from "./server.js";
import { FolderView } from "./folder_view.js";
import { StudyChart } from "./study_chart.js";
import { TrialTable } from "./trial_table.js";

const machineEveryMs = 2000, mostNumbers = 12;

export class StudyView extends FolderView {
  constructor(node, { onRun, onFailure }) {
    super(node, { kind: "study", onFailure });
    Object.assign(this, { onRun, machine: null });
    this.best = element("section", { "aria-label": "Best trial" });
    this.running = element("section", { "aria-label": "Running trials" });
    this.failures = element("section", { "aria-label": "Failures" });
    this.chart = new StudyChart();
    this.trials = new TrialTable({ onRun });
    node.replaceChildren(element("div", { class: "current-head" }, this.title, this.report), this.facts, this.reason, this.figures, this.best, this.running, this.failures, this.chart.node, this.trials.node);
  }

  // study: the item of the list; null hides the view.
  show(study) {
    const isAnother = this.take(study);
    clearInterval(this.looking);
    if (!study) return;
    if (isAnother) { this.chart.show([]); this.trials.clear(); }
    this.looking = setInterval(() => this.look(), machineEveryMs);
    if (isAnother) this.look();
    this.draw();
    this.loadIfChanged(isAnother);
  }

  showDetails(found) {
    const { best, value_unit: unit } = this.shown;
    this.chart.show(found.history, { unit, states: new Map(found.trials.map(({ number: which, state }) => [which, state])) });
    this.trials.show(found, { best: best?.number, unit });
  }

  async look() {
    if (document.hidden) return;
    try {
      this.machine = await get("machine");
    } catch { /* the stream reports that the server is gone */ }
    if (this.shown) this.draw();
  }

  draw() {
    const { shown: study } = this;
    if (!this.isNew(study, this.machine)) return;
    this.drawTitle();
    this.report.hidden = !study.has_report;
    this.report.href = studyReportAddress(study.name);
    const counts = [["complete", study.complete], ["pruned", study.pruned], ["failed", study.failed], ["impossible", study.impossible]].filter(([, n]) => n).map(([what, n]) => `${n} ${what}`);
    setText(this.facts, [...counts, study.jobs ? `${study.jobs} at once` : "", study.began ? `began ${when(study.began)}` : ""].filter(Boolean).join(" · "));
    this.drawReason([study.reason, ...study.feature_warnings].filter(Boolean).join(" "), study.status === "broken" || study.feature_warnings.length > 0);
    this.drawFigures();
    const best = study.best;
    this.drawPart(this.best, "Best settings", best && element("p", { class: "best-settings" },
      ...Object.entries(best.settings).map(([name, value]) => element("span", {}, `${name} `, element("b", {}, value)))), best && this.trialButton(best));
    this.drawPart(this.running, "Running", study.running.length ? element("ul", { class: "running" }, ...study.running.map((trial) => this.runningRow(trial))) : null);
    this.drawPart(this.failures, "Failures", study.failures.length ? element("ul", { class: "failures" }, ...study.failures.map(({ times, reason, numbers }) => element("li", {},
      element("b", {}, `${times} × `), reason, element("span", { class: "hint" }, ` trial${numbers.length === 1 ? "" : "s"} ${numbers.slice(0, mostNumbers).join(", ")}${numbers.length > mostNumbers ? ", ..." : ""}`)))) : null);
  }

  drawFigures() {
    const { shown: study, machine } = this, isBroken = study.status === "broken";
    const bar = element("span", { class: "track", "aria-hidden": "true" }, element("i", { class: "fill", style: { width: `${(study.progress || 0) * 100}%` } }));
    const memory = (used, total) => (used === null || total === null ? "" : `${number(used, 3)} of ${number(total, 3)} GiB`);
    const tiles = isBroken ? [] : [
      ["Trials", `${study.finished ?? 0} of ${study.n_trials ?? "?"}`, bar],
      ["Trials per hour", number(study.trials_per_hour_last_hour ?? study.trials_per_hour, 3), `${number(study.trials_per_hour, 3)} in all`],
      ["Time left", duration(study.seconds_left), ""],
      ["Best value", number(study.best?.value), study.best ? [study.value_unit, `trial ${study.best.number}`].filter(Boolean).join(", ") : ""],
    ];
    if (machine) {
      tiles.push(["CPU", `${Math.round(machine.cpu_percent)} %`, `${machine.n_cores} core${machine.n_cores === 1 ? "" : "s"}, ${memory(machine.memory_gib, machine.total_gib)}`]);
      for (const gpu of machine.gpus) tiles.push(["GPU", gpu.percent === null ? "–" : `${Math.round(gpu.percent)} %`, [gpu.name, memory(gpu.memory_gib, gpu.total_gib)].filter(Boolean).join(", ")]);
    }
    this.drawTiles(tiles);
  }

  trialButton({ number: which, run }) {
    return run ? element("button", { type: "button", class: "link", onclick: () => this.onRun(run) }, `trial ${which}`) : element("span", {}, `trial ${which}`);
  }

  runningRow(trial) {
    const spent = trial.began ? (Date.now() - new Date(trial.began).getTime()) / 1000 : null;
    return element("li", {}, this.trialButton(trial),
      element("span", { class: "track", "aria-hidden": "true" }, element("i", { class: "fill", style: { width: `${(trial.progress || 0) * 100}%` } })),
      element("span", { class: "share" }, percent(trial.progress)),
      element("span", { class: "hint" }, [spent === null || Number.isNaN(spent) ? "" : duration(Math.max(0, Math.round(spent))), trial.value === null ? "" : `best ${number(trial.value)}`, trial.host ? `on ${trial.host}` : ""].filter(Boolean).join(" · ")));
  }
}
