// The current run: name, state, progress and, if a service serves the page, its buttons.
import { element } from "./elements.js";
import { compact, duration, number, percent } from "./format.js";
import { ResumeDialog, ScaleDialog } from "./run_dialogs.js";
import { hasControls, post } from "./server.js";

export class CurrentRun {
  constructor(node, { onSaid, onStudy, runNamed }) {
    this.runNamed = runNamed;
    this.node = node;
    this.onSaid = onSaid;
    this.title = element("h2", {});
    this.study = element("button", { type: "button", class: "link", onclick: () => onStudy(this.run.study) });
    this.facts = element("p", { class: "facts" });
    this.reason = element("div", { class: "message" });
    this.buttons = element("div", { class: "buttons", hidden: !hasControls });
    if (hasControls) this.makeButtons();
    node.replaceChildren(element("div", { class: "current-head" }, this.title, this.buttons), this.study, this.facts, this.reason);
  }

  makeButtons() {
    const button = (label, title, action) => element("button", { type: "button", title, onclick: action }, label);
    this.stop = button("Stop", "Save and end this run", () => this.ask("stop"));
    this.resume = button("Resume", "Continue this run from its checkpoint, if it has one", () => (this.run.status === "finished" ? this.resuming.open(this.run) : this.ask("resume")));
    this.scale = button("Scale", "Change its workers or environments", () => this.scaling.open(this.run));
    this.buttons.append(this.stop, this.resume, this.scale);
    this.scaling = new ScaleDialog((more) => this.sent("scale", more, this.scaling.run));
    this.resuming = new ResumeDialog((more) => this.sent("resume", more, this.resuming.run));
  }

  show(run) {
    this.node.hidden = !run;
    this.run = run;
    if (!run) return;
    const steps = run.global_step === null ? null : `${run.global_step.toLocaleString("en")}${run.total_timesteps === null ? "" : ` of ${run.total_timesteps.toLocaleString("en")}`} steps${run.progress === null ? "" : ` (${percent(run.progress)})`}`;
    const facts = [
      run.task, run.algorithm, run.seed === null ? null : `seed ${run.seed}`,
      run.n_envs === null ? null : `${run.n_envs} environment${run.n_envs === 1 ? "" : "s"}`,
      run.n_ranks === null ? null : `${run.n_ranks} rank${run.n_ranks === 1 ? "" : "s"}`,
      run.n_workers === null ? null : run.n_workers === 0 ? "no workers" : `${run.n_workers} worker${run.n_workers === 1 ? "" : "s"}`,
      steps,
      run.status === "running" && run.steps_per_second !== null ? `${compact(run.steps_per_second)} steps/s` : null,
      run.seconds_left === null || run.activity === "evaluating" ? null : `${duration(run.seconds_left)} left`,
      run.best_score === null ? null : `best score ${number(run.best_score)}${run.score_unit ? ` ${run.score_unit}` : ""}`,
    ].filter((fact) => fact !== null).map((fact) => fact.replaceAll(" ", "\u00a0"));
    const key = JSON.stringify([run.name, run.activity, run.reason, run.study, facts]);
    if (key === this.key) return;
    this.key = key;
    this.title.replaceChildren(run.name, " ", element("span", { class: "state", "data-state": run.activity }, run.activity));
    this.study.hidden = !run.study;
    this.study.textContent = run.study ? `A trial of the study ${run.study}` : "";
    this.facts.textContent = facts.join(" · ");
    this.reason.hidden = !run.reason;
    this.reason.classList.toggle("bad", run.status === "failed" || run.status === "broken");
    const more = run.reason && run.reason.trim() !== run.headline ? [element("details", {}, element("summary", {}, "Full message"), element("pre", {}, run.reason))] : [];
    this.reason.replaceChildren(run.headline || "", ...more);
    if (hasControls) {
      this.stop.disabled = !["running", "queued"].includes(run.status);
      this.resume.disabled = !["stopped", "failed", "finished"].includes(run.status);
      this.scale.disabled = run.status !== "running";
    }
  }

  // Send a request, and show a refusal above the charts.
  async ask(action) {
    const name = this.run.name;
    const buttons = [this.stop, this.resume, this.scale], before = buttons.map((button) => button.disabled);
    buttons.forEach((button) => { button.disabled = true; });
    try {
      await this.sent(action, {}, this.run);
    } catch (error) {
      this.onSaid(error.message, true);
    }
    if (this.run?.name === name) buttons.forEach((button, i) => { button.disabled = before[i]; });
  }

  async sent(action, more, { name, status }) {
    const { done } = await post(action, { run: name, ...more });
    const now = () => this.runNamed(name)?.status;
    this.onSaid(done, false, { stop: () => !["running", "queued"].includes(now()), resume: () => now() !== status }[action]);
  }
}
