"""A market bar by bar through a broker and the books, with actions given: the backtest's loop, as plain as can be."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.live.sizing import size_orders
from ml_pipeline.trading.envs.actions import ActionReader
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.market.bar_set import BarSet

DAY = np.timedelta64(1, "D")


def carried(market: PreparedMarket) -> PreparedMarket:
    """The market as files are read: without a bar, a symbol's prices are its last close, or 0 before its first."""
    names = [name for name in ("open", "high", "low", "close") if getattr(market, name) is not None]
    tables = {name: getattr(market, name).copy() for name in names}
    spreads = None if market.half_spread is None else market.half_spread.copy()
    for t, tradable in enumerate(market.tradable):
        last = tables["close"][t - 1] if t else np.zeros(len(tradable))
        for table in tables.values():
            table[t] = np.where(tradable, table[t], last)
        if spreads is not None and t:
            spreads[t] = np.where(tradable, spreads[t], spreads[t - 1])
    return replace(market, **tables, half_spread=spreads)


def bar_set(market: PreparedMarket, t: int) -> BarSet:
    """The bars at row t of a carried market, which open at its times and are a day long."""

    def row(name: str) -> Any:
        table = getattr(market, name)
        return np.where(market.tradable[t], market.close[t] if table is None else table[t], np.nan)

    return BarSet(
        time=market.times[t],
        closed_at=market.times[t] + DAY,
        open=row("open"),
        high=row("high"),
        low=row("low"),
        close=row("close"),
        volume=np.zeros(len(market.symbols)),
        fillable=market.tradable[t],
        half_spread=None if market.half_spread is None else market.half_spread[t],
    )


class Decision(NamedTuple):
    time: np.datetime64
    closing: bool
    weights: list[float]
    may_trade: list[bool]


class Replay:
    """One pass through a market; `rows` are the ledger's, `step` takes the next bar."""

    def __init__(self, market: PreparedMarket, rules: Any, actions: Any, broker: SimulatedBroker) -> None:
        self.market, self.rules, self.actions, self.broker = market, rules, actions, broker
        self.books = AccountBook(market.symbols, rules)
        self.recorder = self.books.recorder(quotes=market.half_spread is not None)
        self.rows: list[Any] = []
        self.cursor: str | None = None
        self._reader = ActionReader(rules, market.symbols)
        self._closings = market.closings(rules.fill_at) if rules.flat_at_close else np.zeros(market.n_bars, dtype=bool)
        self._closing = False
        self._before = list(self._reader.state())

    @property
    def over(self) -> bool:
        return self.books.ended or len(self.rows) == self.market.n_bars

    def run(self) -> Any:
        """All bars; the ledger."""
        while not self.over:
            self.step()
        return self.recorder.ledger()

    def step(self) -> None:
        t, bars = len(self.rows), bar_set(self.market, len(self.rows))
        self.broker.market_closed_bar(bars)
        events, self.cursor = self.broker.poll(self.cursor)
        for event in events:
            assert self.books.apply(event)
        row = self.books.close_bar(bars, closing=self._closing)
        self.rows.append(row)
        self.recorder.append(row)
        if t:
            self._settle(events, row)
        if not self.over:
            self.broker.submit(self._orders(t))

    def _settle(self, events: Any, row: Any) -> None:
        for event in events:
            if getattr(event, "status", None) == "expired":
                i = self.market.symbols.index(event.symbol)
                self._reader.state()[i] = self._before[i]
        if self.rules.acts_within_bars:
            if self.rules.limit_bps is not None and not self._closing:
                choices = zip(row.filled, self._reader.state(), self._before, strict=True)
                self._reader.set_state([has if n else had for n, has, had in choices])
            self._reader.note_exits(row.exited, row.positions)

    def _orders(self, t: int) -> list[OrderRequest]:
        self._before = list(self._reader.state())
        self._closing = bool(self._closings[t])
        every = [True] * len(self.market.symbols)
        action = self.actions[t]
        discrete = self.rules.action_mode in {"discrete", "buy_hold_sell"}
        given = int(action[0]) if discrete and len(every) == 1 else action
        weights, trades = self._reader.close(every) if self._closing else self._reader.read(given, every)
        decision = Decision(self.market.times[t], self._closing, weights, trades)
        terms = self.rules.terms(self.market.periods_per_year)
        return size_orders(decision, books=self.books, terms=terms, session_id="replay", sizes_at_fill=True)


def new_broker(market: PreparedMarket, rules: Any, store: Any, **settings: Any) -> SimulatedBroker:
    """A broker for the market, whose account is at `store`."""
    days = {}
    if rules.financing_bps_per_year is not None:
        charged = market.bar_tables(rules).days[:, 0].tolist()  # type: ignore[union-attr]
        days = dict(zip(market.times[1:].tolist(), charged, strict=True))
    return SimulatedBroker(
        market.symbols,
        rules,
        periods_per_year=market.periods_per_year,
        store=store,
        interest_days=lambda time: days.get(time.astype("datetime64[ns]").item(), 0.0),
        bar_length=DAY,
        **{"durable": False, **settings},
    )
