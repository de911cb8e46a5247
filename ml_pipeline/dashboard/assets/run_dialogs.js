// Dialogs for scaling and resuming a run. A refusal is shown in the dialog, which keeps the typed numbers.
import { element } from "./elements.js";

class RunDialog {
  // send: sends the request; resolves once it is accepted.
  constructor(label, submit, send, ...fields) {
    this.send = send;
    this.title = element("h3", {});
    this.refusal = element("p", { class: "message bad", role: "alert", hidden: true });
    this.submit = element("button", { type: "submit" }, submit);
    this.node = element("dialog", { "aria-label": label }, element("form", { method: "dialog", novalidate: true, onsubmit: (event) => this.submitted(event) },
      this.title, ...fields, this.refusal,
      element("div", { class: "buttons" }, this.submit, element("button", { type: "button", onclick: () => this.node.close() }, "Cancel"))));
    document.body.append(this.node);
  }

  open(run) {
    this.run = run;
    this.refuse("");
    this.fill(run);
    this.node.showModal();
  }

  refuse(text) {
    this.refusal.hidden = !text;
    this.refusal.textContent = text;
  }

  async submitted(event) {
    event.preventDefault();
    const asked = this.asked();
    if (typeof asked === "string") { this.refuse(asked); return; }
    this.submit.disabled = true;
    try {
      await this.send(asked);
      this.node.close();
    } catch (error) {
      this.refuse(inWords(error.message));
    }
    this.submit.disabled = false;
  }
}

const inWords = (text) => text.replaceAll(/--total-timesteps|total_timesteps/g, "steps in all").replaceAll("n_workers", "workers").replaceAll("n_envs", "environments");
const whole = /^[0-9]+$/;

export class ScaleDialog extends RunDialog {
  constructor(send) {
    const workers = element("input", { type: "text", autocomplete: "off", list: "worker-choices" });
    const envs = element("input", { type: "text", inputmode: "numeric", autocomplete: "off" });
    super("Scale the run", "Scale", send,
      element("label", {}, "Workers ", workers), element("datalist", { id: "worker-choices" }, element("option", { value: "auto" }), element("option", { value: "dynamic" })),
      element("label", {}, "Environments ", envs),
      element("p", { class: "hint" }, "Workers: a number, auto or dynamic; they only change the speed. The number of environments changes what is learned."));
    Object.assign(this, { workers, envs });
  }

  fill(run) {
    this.title.textContent = `Scale ${run.name}`;
    this.before = [run.n_workers, run.n_envs].map((value) => (value === null ? "" : String(value)));
    [this.workers.value, this.envs.value] = this.before;
    this.workers.select();
  }

  // The changed numbers, or an error message.
  asked() {
    const [workers, envs] = [this.workers.value.trim(), this.envs.value.trim()], more = {};
    if (workers && workers !== this.before[0]) {
      if (!whole.test(workers) && !["auto", "dynamic"].includes(workers)) return `Workers must be a whole number, auto or dynamic, but are "${workers}".`;
      more.n_workers = whole.test(workers) ? Number(workers) : workers;
    }
    if (envs && envs !== this.before[1]) {
      if (!whole.test(envs) || Number(envs) < 1) return `Environments must be a whole number from 1 on, but are "${envs}".`;
      more.n_envs = Number(envs);
    }
    return Object.keys(more).length ? more : "Change one of the numbers first.";
  }
}

export class ResumeDialog extends RunDialog {
  constructor(send) {
    const total = element("input", { type: "text", inputmode: "numeric", autocomplete: "off" });
    const taken = element("p", { class: "hint" });
    super("Resume the run", "Resume", send, element("label", {}, "Steps in all ", total), taken);
    Object.assign(this, { total, taken });
  }

  fill(run) {
    this.title.textContent = `Resume ${run.name}`;
    this.steps = run.global_step || 0;
    this.total.value = String(2 * Math.max(this.steps, run.total_timesteps || 0));
    this.taken.textContent = `It finished after ${this.steps.toLocaleString("en")} steps, and will continue from its checkpoint to the new total.`;
    this.total.select();
  }

  asked() {
    const total = this.total.value.trim();
    if (!whole.test(total) || Number(total) <= this.steps) return `Steps in all must be a whole number above ${this.steps.toLocaleString("en")}, but are "${total}".`;
    return { total_timesteps: Number(total) };
  }
}
