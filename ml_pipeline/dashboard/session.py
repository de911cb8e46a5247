"""What is told about a trading session: its state, its account, what it decided last, and what happened to it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ml_pipeline.dashboard.read_values import count, finite, text
from ml_pipeline.runs.state import RunState

ORDER_EVENTS = ("order", "update", "fill")
_SILENT_S = 60.0
"""A session touches its heartbeat every few seconds."""
_FIGURES = ("equity", "start_equity", "cash")
_COUNTS = ("bars", "fills", "open_orders", "pid")
_TEXTS = ("model", "version", "broker", "bar", "updated", "last_sentence")


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session as its state.json and its live.json tell. None: not known."""

    name: str
    folder: Path
    status: str
    """running, finished, stopped or failed; broken where the file holds something else."""
    reason: str | None = None
    """Why it is taken to be stopped, or what is broken."""
    model: str | None = None
    version: str | None = None
    broker: str | None = None
    real_money: bool = False
    symbols: tuple[str, ...] = ()
    bar: str | None = None
    """The time of its last bar."""
    began: str | None = None
    updated: str | None = None
    equity: float | None = None
    start_equity: float | None = None
    cash: float | None = None
    positions: Mapping[str, float] = field(default_factory=dict)
    """Signed quantities, of symbols that are held."""
    open_orders: int | None = None
    bars: int | None = None
    fills: int | None = None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """How often each guard refused."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """median and p99, from a bar to its orders."""
    last_sentence: str | None = None
    retrain: str | None = None
    """What became of the latest retraining, such as "2 promoted"."""
    pid: int | None = None
    has_report: bool = False
    has_reconciliation: bool = False

    @property
    def simple_return(self) -> float | None:
        """Since the start."""
        if self.equity is None or not self.start_equity:
            return None
        return self.equity / self.start_equity - 1.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder), "simple_return": self.simple_return}


def session_summary(
    values: Mapping[str, Any],
    state: RunState,
    *,
    name: str,
    folder: Path,
    heartbeat_s: float,
    has_report: bool = False,
    has_reconciliation: bool = False,
) -> SessionSummary:
    """The session of what live.json holds. heartbeat_s: when it last gave a sign of life, in seconds since 1970."""
    status: str = state.status
    reason = state.reason
    silent_s = time.time() - heartbeat_s
    if status == "running" and silent_s > _SILENT_S:
        status = "stopped"
        reason = (
            f"It gave no sign of life for {silent_s / 60:,.0f} minutes, so that its process is gone or hangs; start it "
            "again with the same command to go on."
        )
    symbols = values.get("symbols")
    plain: dict[str, Any] = {each: text(values.get(each)) for each in _TEXTS}
    plain |= {each: finite(values.get(each)) for each in _FIGURES}
    plain |= {each: count(values.get(each)) for each in _COUNTS}
    return SessionSummary(
        name=name,
        folder=folder,
        status=status,
        reason=reason,
        began=state.began,
        real_money=values.get("real_money") is True,
        symbols=tuple(filter(None, map(text, symbols))) if isinstance(symbols, list) else (),
        positions=_numbers(values.get("positions")),
        refusals={name: int(times) for name, times in _numbers(values.get("refusals")).items()},
        latency_ms=_numbers(values.get("latency_ms")),
        retrain=_retrain(values.get("retrain")),
        has_report=has_report,
        has_reconciliation=has_reconciliation,
        **plain,
    )


def decision_details(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"bar", "model", "weights", "features": [[column, raw, scaled, [lowest, highest] of training or None]]}.

    features: those out of the range of training first. What is odd in a decision.json is left out.
    """
    beyond = {}
    for each in values.get("out_of_range") or ():
        if isinstance(each, list) and len(each) == 4 and isinstance(each[0], str):
            beyond[each[0]] = [finite(each[2]), finite(each[3])]
    features = values.get("features")
    rows = [
        [name, finite(pair[0]), finite(pair[1]), beyond.get(name)]
        for name, pair in (features.items() if isinstance(features, dict) else ())
        if isinstance(pair, list) and len(pair) == 2
    ]
    return {
        "bar": text(values.get("bar")),
        "model": text(values.get("model")),
        "weights": _numbers(values.get("weights")),
        "features": sorted(rows, key=lambda row: row[3] is None),
    }


def orders_of(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The life of each order in one row, from the order, update and fill events of a session's log, the oldest first.

    {"bar": on which it was decided, "symbol", "ordered", "filled": signed quantities, "price": mean of its fills,
    "limit", "costs": money, "status": the broker's last word, "steps": every one, "reason"}.
    The newest comes first. What the log no longer holds of an order, or holds oddly, is None.
    """
    orders: dict[str, dict[str, Any]] = {}
    for event in events:
        which = text(event.get("client_order_id"))
        if which is None or event.get("event") not in ORDER_EVENTS:
            continue
        names = ("bar", "symbol", "ordered", "limit", "filled", "price", "costs", "status", "reason")
        order = orders.setdefault(which, {**dict.fromkeys(names), "steps": []})
        for name in ("bar", "symbol"):
            order[name] = order[name] or text(event.get(name))
        if event["event"] == "order":
            order |= {"ordered": finite(event.get("quantity")), "limit": finite(event.get("limit_price"))}
            order["steps"].append("sent")
        elif event["event"] == "update":
            order |= {"status": text(event.get("status")), "reason": text(event.get("reason")) or None}
            if order["status"] and order["steps"][-1:] != [order["status"]]:
                order["steps"].append(order["status"])
        else:
            _take_fill(order, event)
    return [*orders.values()][::-1]


def _take_fill(order: dict[str, Any], fill: Mapping[str, Any]) -> None:
    quantity, price = finite(fill.get("quantity")), finite(fill.get("price"))
    if quantity and price is not None:
        before = order["filled"] or 0.0
        paid = before * (order["price"] or 0.0) + quantity * price
        order["filled"] = before + quantity
        order["price"] = paid / order["filled"] if order["filled"] else price
    order["costs"] = (order["costs"] or 0.0) + (finite(fill.get("costs")) or 0.0)


def _retrain(value: object) -> str | None:
    """The number and the state of a `RetrainEvent`."""
    if not isinstance(value, dict):
        return None
    return " ".join(str(each) for each in (count(value.get("number")), text(value.get("state"))) if each is not None)


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {str(name): number for name, each in value.items() if (number := finite(each)) is not None}
