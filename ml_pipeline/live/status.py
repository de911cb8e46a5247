"""Write live.json and decision.json, the state of a session at its last bar, and log its last decision."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ml_pipeline.live.components import SessionComponents
from ml_pipeline.live.decisions.policy_runner import Decision
from ml_pipeline.live.record.session_log import plain
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.trading.market.bar_set import BarSet


class LastDecision:
    """The last decision; it is logged after its orders are sent."""

    def __init__(self, record: SessionRecord, symbols: Sequence[str]) -> None:
        self._record = record
        self._symbols = tuple(symbols)
        self._made: tuple[BarSet, Decision, dict[str, Any]] | None = None
        self._logged = False

    def note(self, decision: Decision, bars: BarSet, values: dict[str, Any]) -> None:
        """Store a new decision, within the transaction of its bars. values: of the event, with latencies in ms."""
        self._made, self._logged = (bars, decision, values), False
        self._record.state.unlogged_decision = plain({"bar": bars.time, **values})

    def note_sent(self, arrived: float) -> bool:
        """Log the decision after its orders reached the broker. Returns False if it was logged before.

        arrived: when its bars arrived, by `time.perf_counter`.
        """
        if self._made is None or self._logged:
            return False
        bars, _, values = self._made
        total = time.perf_counter() - arrived
        latency = values["latency_ms"]
        latency["total"] = in_ms(total)
        before = sum(latency[name] for name in ("books", "policy", "orders"))
        latency["submit"] = round(latency["total"] - before, 3)
        self._record.latencies_ms.append(total * 1e3)
        with self._record.transaction():
            self._record.log("decision", bars.time, **values)
            self._record.state.unlogged_decision = None
        self._logged = True
        return True

    def log_unlogged(self) -> None:
        """Log the decision before a kill; its orders have been settled since."""
        if (values := self._record.state.unlogged_decision) is not None:
            with self._record.transaction():
                self._record.log("decision", np.datetime64(values.pop("bar")), **values)
                self._record.state.unlogged_decision = None

    def as_data(self, model: str) -> dict[str, Any] | None:
        """The content of decision.json; None before the first decision."""
        if self._made is None:
            return None
        bars, decision, _ = self._made
        pairs = zip(listed(decision.features), listed(decision.scaled), strict=True)
        return {
            "bar": bars.time,
            "model": model,
            "action": listed(decision.action),
            "weights": by_symbol(self._symbols, decision.weights),
            "features": dict(zip(decision.columns, map(list, pairs), strict=True)),
            "out_of_range": [list(each) for each in decision.out_of_range],
        }


def write_status(session: SessionComponents, decision: LastDecision, *, now: bool = False) -> None:
    """Rewrite live.json and decision.json. now: even if they were written a moment ago."""
    made = decision.as_data(session.model)
    if now:
        session.record.write_status_now(_values(session), made)
    else:
        session.record.write_status(lambda: _values(session), made)


def _values(session: SessionComponents) -> dict[str, Any]:
    state, record, account = session.state, session.record, session.account
    initial_cash = session.rules.initial_cash
    return {
        **session.about,
        "symbols": session.symbols,
        "bar": state.time,
        "updated": datetime.now(UTC),
        "pid": os.getpid(),
        "start_equity": initial_cash,
        "equity": account.equity if state.begun else None,
        "time_weighted_return": state.time_weighted_return(account.equity, initial_cash) if state.begun else None,
        "cash": account.cash if state.begun else None,
        "positions": by_symbol(session.symbols, account.holdings),
        "open_orders": len(session.orders.open),
        "refusals": dict(state.refusals),
        "latency_ms": record.latency_figures(),
        "bars": state.number,
        "fills": session.journal.n_fills(),
        "last_sentence": record.last_sentence,
        "model": session.model,
        "version": session.policy.version,
        "retrain": None if session.models is None else session.models.status(),
    }


def in_ms(seconds: float) -> float:
    """Seconds as milliseconds, rounded to the microsecond."""
    return round(float(seconds) * 1e3, 3)


def listed(value: Any) -> Any:
    """Arrays as lists of Python numbers."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def by_symbol(symbols: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return dict(zip(symbols, values, strict=True))
