"""The state that a session needs after a kill, besides decisions, orders, fills and log.

The journal has tables for those, and one row per field for this state. Every transaction of a session ends with
`save`, so a bar and the state after it are on disk together or not at all.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ml_pipeline.live.record.journal import Journal
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray

_KEYS = {
    "account": "books",
    "policy": "decider",
    "guards": "guards",
    "event_cursor": "cursor",
    "expired": "lapsed",
    "closing_ordered": "closing",
    "awaiting_previous_model": "follows",
    "decided": "decided",
    "unlogged_decision": "unlogged",
    "refusals": "refusals",
    "taken_over": "taken_over",
    "costs_paid": "costs_paid",
    "bar_columns": "bar_columns",
    "other_positions": "other_positions",
    "other_orders": "other_orders",
    "awaited_splits": "awaited_splits",
    "cash_rounding": "cash_rounding",
    "fills_since_check": "fills_since_check",
    "flow": "flow",
    "flow_growth": "flow_growth",
    "protections": "protections",
    "left_over_told": "left_over_told",
}
"""The saved fields, and the key of each in the journal."""
_CHANGED_IN_PLACE = {"expired", "refusals", "other_positions", "other_orders", "awaited_splits"}
_NEVER = object()


@dataclass
class SessionState:
    """The state of a session between two bars; A symbols. Change a field within a transaction of the record, which
    saves it.

    Saved: account, policy, guards: `state()` of the account book, the policy runner and the guards after the latest
    bar; each is replaced as a whole. event_cursor: of the broker's events that are booked. expired: symbols whose
    latest order ended unfilled. closing_ordered: True if the orders of the latest bar close all positions.
    awaiting_previous_model: True if positions or open orders were not decided by the current model. decided: True if
    the model decided on the latest bar. unlogged_decision: the event of a decision whose orders may not have been
    sent. refusals: number per guard. taken_over: cash and positions at the start, if the account was not flat.
    costs_paid: sum over the ledger. bar_columns: whether bars have quotes, and the names of their columns.
    other_positions, other_orders: known quantities of symbols that the session does not trade, and IDs of orders of
    other sources. awaited_splits: symbols that have split, while the account does not show it yet. cash_rounding:
    cash that the account has beyond the books since their last comparison. fills_since_check: fills booked since then.
    flow: money that came in or went out since the latest bar. flow_growth: by how much earlier ones multiplied equity.
    protections: of each symbol, the number of its protective orders so far, and ID and values of the one it has.
    left_over_told: symbols of which a rest below the smallest order was reported.

    Derived from the journal's bars: number: of the next bar. begun: whether the ledger has a row. last: the latest
    bars; None before the first. closes: the last close of each symbol, float64 (A,), NaN before its first.
    """

    account: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    guards: dict[str, Any] | None = None
    event_cursor: str | None = None
    expired: set[str] = field(default_factory=set)
    closing_ordered: bool = False
    awaiting_previous_model: bool = False
    decided: bool = False
    unlogged_decision: dict[str, Any] | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    taken_over: dict[str, Any] | None = None
    costs_paid: float = 0.0
    bar_columns: dict[str, Any] | None = None
    other_positions: dict[str, str] = field(default_factory=dict)
    other_orders: set[str] = field(default_factory=set)
    awaited_splits: set[str] = field(default_factory=set)
    cash_rounding: float = 0.0
    fills_since_check: int = 0
    flow: float = 0.0
    flow_growth: float = 1.0
    protections: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_over_told: set[str] = field(default_factory=set)

    number: int = 0
    begun: bool = False
    last: BarSet | None = None
    closes: FloatArray = field(default_factory=lambda: np.empty(0))
    _on_disk: dict[str, tuple[Any, str]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, journal: Journal, symbols: Sequence[str]) -> Self:
        """The state in the journal, or that of a new session if the journal is empty."""
        state = cls(closes=np.full(len(symbols), np.nan))
        on_disk = journal.snapshots()
        for name, key in _KEYS.items():
            if (data := on_disk.get(key)) is not None:
                default = getattr(state, name)
                setattr(state, name, data if default is None else type(default)(data))
            state._changed(name)
        for bars in journal.bars():
            state.note_bar(bars)
        state.begun = journal.first_account_bar() is not None
        return state

    def save(self, journal: Journal) -> None:
        """Write the fields that changed since the last call, within a transaction of the journal."""
        changed = ((key, self._changed(name)) for name, key in _KEYS.items())
        journal.set_snapshots({key: text for key, text in changed if text is not None})

    def note_rolled_back(self) -> None:
        """After a failed transaction: its changes are not on disk, so `save` writes every field again."""
        self._on_disk.clear()

    @property
    def time(self) -> np.datetime64 | None:
        """Time of the latest bars."""
        return None if self.last is None else self.last.time

    def note_bar(self, bars: BarSet) -> None:
        """Update the derived fields after these bars were written to the journal."""
        self.number += 1
        self.last = bars
        self.closes = np.where(bars.present, bars.close, self.closes)

    def leave_flow_out(self, equity: float) -> None:
        """At the close of a bar, move `flow` into `flow_growth` unless nothing is left. equity: in that bar's row, with
        the flow."""
        if not self.flow or equity <= 0.0:
            return
        if equity > self.flow:
            self.flow_growth *= equity / (equity - self.flow)
        self.flow = 0.0

    def time_weighted_return(self, equity: float, initial_cash: float) -> float:
        """The return since the start, without the money that came in or went out."""
        return (equity - self.flow) / (initial_cash * self.flow_growth) - 1.0

    def _changed(self, name: str) -> str | None:
        """The field as JSON if it differs from the one on disk, otherwise None."""
        value = getattr(self, name)
        before, text_before = self._on_disk.get(name, (_NEVER, None))
        if value is before and name not in _CHANGED_IN_PLACE:
            return None  # writing JSON takes time for an account of many symbols
        text = json.dumps(sorted(value) if isinstance(value, set) else value)
        self._on_disk[name] = value, text
        return None if text == text_before else text
