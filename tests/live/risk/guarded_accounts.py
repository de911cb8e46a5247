"""Bars, books and orders by a few numbers, for the tests of guards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ml_pipeline.live.brokers.broker import OrderRequest, TradingSession
from ml_pipeline.live.risk.config import GuardConfig
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.timeframes import Timing

MINUTE = Timing(length=60 * 10**9, stamped="open")
NOON = np.datetime64("2026-03-02T12:00", "ns")  # a Monday


def seconds(n: float) -> np.timedelta64:
    return np.timedelta64(round(n * 1e9), "ns")


def bars(*closes: float, time: np.datetime64 = NOON, **fields: Any) -> BarSet:
    """A minute bar that opens at `time`, of one symbol for each close: all prices are that close."""
    close = np.array(closes, dtype=np.float64)
    given = {name: np.array(value, dtype=np.float64) for name, value in fields.items() if name != "late"}
    usual = {"open": close, "high": close, "low": close, "close": close, "volume": np.full(len(close), 100.0)}
    return BarSet(
        time=time,
        closed_at=time + seconds(60),
        fillable=~np.isnan(close),
        late=fields.get("late", False),
        **{**usual, **given},
    )


@dataclass
class Books:
    """An account of so much equity, and what it holds."""

    equity: float = 10_000.0
    holdings: Mapping[str, float] = field(default_factory=dict)


def order(symbol: str, quantity: float, weight: float = 0.0, **rest: Any) -> OrderRequest:
    return OrderRequest(f"id-{symbol}-{quantity}", symbol, quantity, weight, **rest)


def guards_of(*symbols: str, sessions: Sequence[TradingSession] = (), **settings: Any) -> Guards:
    return Guards(GuardConfig(**settings), symbols, timing=MINUTE, sessions=sessions)


def allowed(guards: Guards, *orders: OrderRequest, books: Books, closes: Sequence[float]) -> list[OrderRequest]:
    """The orders that may be sent on a bar that nothing else is wrong with."""
    guards.on_bars(bars(*closes), NOON + seconds(61), None)
    return guards.on_orders(orders, books, closes, NOON + seconds(61))[0]


def refusals(guards: Guards, *orders: OrderRequest, books: Books, closes: Sequence[float]) -> list[str]:
    """The sentences about orders on a bar that nothing else is wrong with."""
    guards.on_bars(bars(*closes), NOON + seconds(61), None)
    return [refusal.sentence for refusal in guards.on_orders(orders, books, closes, NOON + seconds(61))[1]]


def session(first: str, last: str) -> TradingSession:
    return TradingSession(np.datetime64(first, "ns"), np.datetime64(last, "ns"))
