// A trading session: account, equity over time, positions, orders, the last decision with its features, and events.
import { element, sayIfItScrolls, setText } from "./elements.js";
import { duration, money, number, signedPercent, when } from "./format.js";
import { sessionReconciliationAddress, sessionReportAddress } from "./server.js";
import { EquityChart } from "./equity_chart.js";
import { FolderView } from "./folder_view.js";
import { label, modelName } from "./run_names.js";

const mostFeatures = 60, mostPositions = 30;

export class SessionView extends FolderView {
  constructor(node, { onFailure }) {
    super(node, { kind: "session", onFailure });
    this.details = null;
    this.reconciliation = element("a", { target: "_blank", rel: "noopener" }, "Backtest against live");
    this.chart = new EquityChart();
    this.positions = element("section", { "aria-label": "Positions" });
    this.orders = element("section", { "aria-label": "Orders" });
    this.decision = element("section", { "aria-label": "Last decision" });
    this.guards = element("section", { "aria-label": "Guards" });
    this.events = element("section", { "aria-label": "Events" });
    node.replaceChildren(element("div", { class: "current-head" }, this.title, this.report, this.reconciliation), this.facts, this.reason, this.figures, this.chart.node, this.positions, this.guards, this.orders, this.decision, this.events);
  }

  // session: the item of the list; null hides the view.
  show(session) {
    const isAnother = this.take(session);
    if (!session || isAnother) this.details = null;
    if (!session) return;
    if (isAnother) this.chart.show([[], [], []]);
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
    if (!this.isNew(session, details && [details.decision, details.events, details.orders, details.holdings])) return;
    this.drawTitle(session.real_money ? element("strong", { class: "bad" }, " real money") : "");
    this.report.hidden = !session.has_report;
    this.report.href = sessionReportAddress(session.name);
    this.reconciliation.hidden = !session.has_reconciliation;
    this.reconciliation.href = sessionReconciliationAddress(session.name);
    const model = [label(modelName(session.model)), session.version].filter(Boolean).join(" ");
    setText(this.facts, [model && `model ${model}`, session.broker && `broker ${session.broker}`, session.bar && `last bar ${session.bar.replace("T", " ")} UTC`, session.began && `began ${when(session.began)}`].filter(Boolean).join(" · "));
    this.drawReason(session.reason || session.last_sentence, session.status === "broken" || session.status === "failed");
    this.drawFigures();
    this.drawPositions();
    this.drawPart(this.guards, "Refused by guards", Object.keys(session.refusals).length ? element("p", { class: "best-settings" },
      ...Object.entries(session.refusals).map(([guard, times]) => element("span", {}, `${guard} `, element("b", {}, `${times} ×`)))) : null);
    this.drawOrders(details?.orders || []);
    this.drawDecision(details?.decision);
    this.drawPart(this.events, "What happened", details?.events.length ? element("ul", { class: "events" }, ...details.events.map((event) => element("li", { "data-event": event.event },
      element("time", { class: "hint" }, (event.bar || event.at || "").replace("T", " ").slice(0, 19)), element("b", {}, event.event), element("span", {}, event.text)))) : null);
  }

  drawFigures() {
    const { shown: session } = this, latency = session.latency_ms;
    const tiles = session.status === "broken" ? [] : [
      ["Equity", money(session.equity), session.start_equity === null ? "" : `began with ${money(session.start_equity)}`],
      ["Return", signedPercent(session.simple_return), "since the start"],
      ["Cash", money(session.cash), session.open_orders ? `${session.open_orders} open order${session.open_orders === 1 ? "" : "s"}` : "no open orders"],
      ["Bars", number(session.bars, 9), `${number(session.fills, 9)} fill${session.fills === 1 ? "" : "s"}`],
      ["Bar to orders", latency.median === undefined ? "–" : duration(latency.median / 1000), latency.p99 === undefined ? "" : `99 % within ${duration(latency.p99 / 1000)}`],
    ];
    if (session.retrain) tiles.push(["Retraining", session.retrain, ""]);
    this.drawTiles(tiles);
  }

  drawPositions() {
    const known = new Map((this.details?.holdings || []).map((each) => [each.symbol, each]));
    const held = Object.entries(this.shown.positions).filter(([, quantity]) => quantity);
    const size = ([symbol, quantity]) => Math.abs(known.get(symbol)?.value ?? quantity);
    const rows = held.sort((a, b) => size(b) - size(a)).slice(0, mostPositions).map(([symbol, quantity]) => {
      const { price = null, value = null, profit = null } = known.get(symbol) || {};
      const cost = value !== null && profit !== null ? Math.abs(value - profit) : 0;
      return [symbol, quantity > 0 ? "long" : "short", number(quantity, 6), number(price, 6), money(value),
        element("span", { class: profit > 0 ? "good" : profit < 0 ? "bad" : "" }, profit === null ? "–" : `${money(profit)}${cost ? ` (${signedPercent(profit / cost)})` : ""}`)];
    });
    const more = held.length > mostPositions ? element("span", { class: "hint" }, `and ${held.length - mostPositions} more`) : null;
    const table = tableOf([["Symbol"], ["Side"], ["Quantity", 1], ["Last price", 1], ["Value", 1], ["Profit, costs left out", 1]], rows);
    this.drawPart(this.positions, held.length ? "Positions" : "No position is held", held.length ? table : element("span", {}), more);
  }

  drawOrders(orders) {
    const rows = orders.map((order) => {
      const side = (order.ordered ?? order.filled ?? 0) < 0 ? "sell" : "buy";
      const size = (quantity) => (quantity === null ? "–" : number(Math.abs(quantity), 6));
      return [element("time", {}, (order.bar || "").replace("T", " ")), order.symbol || "–", side, size(order.ordered), order.limit === null ? "market" : number(order.limit, 6),
        element("span", { class: ["rejected", "expired"].includes(order.status) ? "bad" : "", title: order.reason || "" }, [order.steps.join(" → ") || "–", order.reason].filter(Boolean).join(": ")),
        size(order.filled), number(order.price, 6), money(order.costs)];
    });
    const table = tableOf([["Decided on the bar (UTC)"], ["Symbol"], ["Side"], ["Quantity", 1], ["Price asked", 1], ["State"], ["Filled", 1], ["At", 1], ["Costs", 1]], rows);
    this.drawPart(this.orders, `Orders (${orders.length})`, orders.length ? table : null);
  }

  drawDecision(decision) {
    if (!decision) { this.decision.hidden = true; return; }
    const weights = Object.entries(decision.weights);
    const rows = decision.features.slice(0, mostFeatures).map(([name, raw, scaled, beyond]) => element("tr", { class: beyond ? "beyond" : "" },
      element("td", {}, name), element("td", { class: "number" }, number(raw, 5)), element("td", { class: "number" }, number(scaled, 3)),
      element("td", { class: "hint" }, beyond ? `training saw ${number(beyond[0], 4)} to ${number(beyond[1], 4)}` : "")));
    const head = element("thead", {}, element("tr", {}, ...["Feature", "Value", "Scaled", ""].map((heading, i) => element("th", { scope: "col", class: i === 1 || i === 2 ? "number" : "" }, heading))));
    const more = decision.features.length > mostFeatures ? element("p", { class: "hint" }, `and ${decision.features.length - mostFeatures} more in decision.json`) : null;
    this.drawPart(this.decision, `Last decision, on the bar of ${(decision.bar || "").replace("T", " ")} UTC`, element("div", {},
      element("p", { class: "best-settings" }, ...weights.map(([symbol, weight]) => element("span", {}, `${symbol} `, element("b", {}, signedPercent(weight))))),
      ...sayIfItScrolls(element("div", { class: "scrolling" }, element("table", { class: "features" }, head, element("tbody", {}, ...rows)))), more));
  }
}

// headings: [text, true for a column of numbers].
function tableOf(headings, rows) {
  const kind = (i) => (headings[i][1] ? "number" : "");
  const table = element("table", { class: "account-table" },
    element("thead", {}, element("tr", {}, ...headings.map(([heading], i) => element("th", { scope: "col", class: kind(i) }, heading)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", { class: kind(i) }, cell))))));
  return element("div", {}, ...sayIfItScrolls(element("div", { class: "scrolling" }, table)));
}
