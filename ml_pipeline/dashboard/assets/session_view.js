// A trading session: its account, its equity over time, the last decision and the features behind it, and what happened.
import { element, setText } from "./elements.js";
import { duration, number, signedPercent, when } from "./format.js";
import { sessionReconciliationAddress, sessionReportAddress } from "./server.js";
import { EquityChart } from "./equity_chart.js";
import { FolderView } from "./folder_view.js";

const mostFeatures = 60, mostPositions = 30;

export class SessionView extends FolderView {
  constructor(node, { onFailure }) {
    super(node, { kind: "session", onFailure });
    this.details = null;
    this.reconciliation = element("a", { target: "_blank", rel: "noopener" }, "Backtest against live");
    this.chart = new EquityChart();
    this.positions = element("section", { "aria-label": "Positions" });
    this.decision = element("section", { "aria-label": "Last decision" });
    this.guards = element("section", { "aria-label": "Guards" });
    this.events = element("section", { "aria-label": "Events" });
    node.replaceChildren(element("div", { class: "current-head" }, this.title, this.report, this.reconciliation), this.facts, this.reason, this.figures, this.chart.node, this.positions, this.guards, this.decision, this.events);
  }

  // session: as the list tells it; null hides the view.
  show(session) {
    const isAnother = this.take(session);
    if (!session || isAnother) this.details = null;
    if (!session) return;
    if (isAnother) this.chart.show([[], []]);
    this.draw();
    this.loadIfChanged(isAnother);
  }

  showDetails(found) {
    this.details = found;
    this.chart.show(found.equity);
    this.draw();
  }

  draw() {
    const { shown: session, details } = this;
    if (!this.isNew(session, details && [details.decision, details.events])) return;
    this.drawTitle(session.real_money ? element("strong", { class: "bad" }, " real money") : "");
    this.report.hidden = !session.has_report;
    this.report.href = sessionReportAddress(session.name);
    this.reconciliation.hidden = !session.has_reconciliation;
    this.reconciliation.href = sessionReconciliationAddress(session.name);
    const model = [session.model, session.version].filter(Boolean).join(" ");
    setText(this.facts, [model && `model ${model}`, session.broker && `broker ${session.broker}`, session.bar && `last bar ${session.bar} UTC`, session.began && `began ${when(session.began)}`].filter(Boolean).join(" · "));
    this.drawReason(session.reason || session.last_sentence, session.status === "broken" || session.status === "failed");
    this.drawFigures();
    this.drawPositions();
    this.drawPart(this.guards, "Refused by guards", Object.keys(session.refusals).length ? element("p", { class: "best-settings" },
      ...Object.entries(session.refusals).map(([guard, times]) => element("span", {}, `${guard} `, element("b", {}, `${times} ×`)))) : null);
    this.drawDecision(details?.decision);
    this.drawPart(this.events, "What happened", details?.events.length ? element("ul", { class: "events" }, ...details.events.map((event) => element("li", { "data-event": event.event },
      element("time", { class: "hint" }, (event.bar || event.at || "").replace("T", " ").slice(0, 19)), element("b", {}, event.event), element("span", {}, event.text)))) : null);
  }

  drawFigures() {
    const { shown: session } = this, latency = session.latency_ms;
    const tiles = session.status === "broken" ? [] : [
      ["Equity", number(session.equity, 7), session.start_equity === null ? "" : `began with ${number(session.start_equity, 7)}`],
      ["Return", signedPercent(session.simple_return), "since the start"],
      ["Cash", number(session.cash, 7), session.open_orders ? `${session.open_orders} open order${session.open_orders === 1 ? "" : "s"}` : "no open orders"],
      ["Bars", number(session.bars, 9), `${number(session.fills, 9)} fill${session.fills === 1 ? "" : "s"}`],
      ["Bar to orders", latency.median === undefined ? "–" : duration(latency.median / 1000), latency.p99 === undefined ? "" : `99 % within ${duration(latency.p99 / 1000)}`],
    ];
    if (session.retrain) tiles.push(["Retraining", session.retrain, ""]);
    this.drawTiles(tiles);
  }

  drawPositions() {
    const held = Object.entries(this.shown.positions).filter(([, quantity]) => quantity).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
    const more = held.length > mostPositions ? element("span", { class: "hint" }, `and ${held.length - mostPositions} more`) : null;
    this.drawPart(this.positions, held.length ? "Positions" : "No position is held", element("p", { class: "best-settings" },
      ...held.slice(0, mostPositions).map(([symbol, quantity]) => element("span", {}, `${symbol} `, element("b", {}, number(quantity, 6)))), more));
  }

  drawDecision(decision) {
    if (!decision) { this.decision.hidden = true; return; }
    const weights = Object.entries(decision.weights);
    const rows = decision.features.slice(0, mostFeatures).map(([name, raw, scaled, beyond]) => element("tr", { class: beyond ? "beyond" : "" },
      element("td", {}, name), element("td", { class: "number" }, number(raw, 5)), element("td", { class: "number" }, number(scaled, 3)),
      element("td", { class: "hint" }, beyond ? `training saw ${number(beyond[0], 4)} to ${number(beyond[1], 4)}` : "")));
    const head = element("thead", {}, element("tr", {}, ...["Feature", "Value", "Scaled", ""].map((heading, i) => element("th", { scope: "col", class: i === 1 || i === 2 ? "number" : "" }, heading))));
    const more = decision.features.length > mostFeatures ? element("p", { class: "hint" }, `and ${decision.features.length - mostFeatures} more in decision.json`) : null;
    this.drawPart(this.decision, `Last decision, on the bar of ${decision.bar} UTC`, element("div", {},
      element("p", { class: "best-settings" }, ...weights.map(([symbol, weight]) => element("span", {}, `${symbol} `, element("b", {}, signedPercent(weight))))),
      element("div", { class: "scrolling" }, element("table", { class: "features" }, head, element("tbody", {}, ...rows))), more));
  }
}
