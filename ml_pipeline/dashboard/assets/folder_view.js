// Base of the views of a study and of a trading session: head, key figures, and details that are loaded when they change.
import { element, setText } from "./elements.js";
import { get } from "./server.js";

const detailsEveryMs = 1000;

export class FolderView {
  // kind: "study" or "session", as in requests. shown: the item of the list; null while the view is hidden.
  constructor(node, { kind, onFailure }) {
    Object.assign(this, { node, kind, onFailure, shown: null });
    this.title = element("h2", {});
    this.report = element("a", { target: "_blank", rel: "noopener" }, "Report");
    this.facts = element("p", { class: "facts" });
    this.reason = element("p", { class: "message" });
    this.figures = element("dl", { class: "study-figures" });
  }

  // Show an item; null hides the view. Returns true if it is another item than before.
  take(item) {
    const isAnother = item?.name !== this.shown?.name;
    this.shown = item;
    this.node.hidden = !item;
    if (!item || isAnother) { this.drawn = null; clearTimeout(this.soon); this.soon = null; this.key = null; }
    return isAnother;
  }

  loadIfChanged(isAnother) {
    if (this.drawn !== this.shown.updated && this.shown.status !== "broken") this.loadSoon(isAnother ? 0 : detailsEveryMs);
  }

  loadSoon(after) {
    if (this.soon && after) return;
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.load(), after);
  }

  async load() {
    this.soon = null;
    const { name, updated } = this.shown;
    try {
      const found = await get(this.kind, { [this.kind]: name });
      if (this.shown?.name !== name) return;
      this.drawn = updated;
      this.showDetails(found);
    } catch (error) {
      this.onFailure(error);
    }
  }

  // True if the content differs from the last drawn content.
  isNew(...drawn) {
    const key = JSON.stringify(drawn);
    const isNew = key !== this.key;
    this.key = key;
    return isNew;
  }

  drawTitle(...more) {
    const { name, status } = this.shown;
    this.title.replaceChildren(name, " ", element("span", { class: "state", "data-state": status }, status), ...more);
  }

  drawReason(text, isBad) {
    this.reason.hidden = !text;
    this.reason.classList.toggle("bad", isBad);
    setText(this.reason, text || "");
  }

  drawTiles(tiles) {
    this.figures.replaceChildren(...tiles.map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "hint" }, more))));
  }

  // Buttons keep the keyboard focus when a part is redrawn.
  drawPart(section, heading, content, ...more) {
    const focused = section.contains(document.activeElement) ? document.activeElement.textContent : null;
    section.hidden = !content;
    section.replaceChildren(...(content ? [element("div", { class: "part-head" }, element("h3", {}, heading), ...more), content] : []));
    if (focused) [...section.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  }

  redraw() { this.chart.redraw(); }
}
