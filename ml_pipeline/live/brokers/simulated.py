"""A broker on this machine that fills orders as a backtest does, with the kernel's step, bar by bar.

Its account is durable, see `store`. It can simulate faults, see `faults`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.account import MarketAccount
from ml_pipeline.live.brokers.broker import (
    ENDED,
    AccountState,
    Adjustment,
    BrokerEvent,
    BrokerUnavailable,
    OrderRequest,
    OrderUpdate,
    QuantityRules,
    TradingSession,
    exact,
)
from ml_pipeline.live.brokers.faults import Chance, SimulatedFaults
from ml_pipeline.live.brokers.matching import Matching, Moment, Span, canceled
from ml_pipeline.live.brokers.store import AccountStore, Change, StoredOrder
from ml_pipeline.trading.accounts.orders import SMALLEST_ORDER
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet

_NO_TIME = np.datetime64("NaT", "ns")

InterestDays = Callable[[np.datetime64], float]
Sessions = Callable[[np.datetime64, np.datetime64], list[TradingSession]]


class SimulatedBroker:
    """The simulated broker, a `Broker` of `live.brokers.broker`.

    An order reaches the market at the close after which it was sent, and is filled with the next bar: at its open, or,
    with fill_at "close", at the close before. If its symbol has no next bar, the order expires. If its target is held
    already, or too little cash is left, it is filled with a quantity of 0.

    symbols, rules: of the session; the account starts with `rules.initial_cash`. periods_per_year: bars per year, for
    rates per bar. store: the account's file. interest_days: days from the bar of a time to the next bar, needed if the
    rules charge interest by day. sessions: when the market is open; None: always. bar_length: needed for latency.
    durable: whether the account survives a power cut, which needs disk flushes; it always survives a kill.
    Raises UserError if the file has an account with other terms.
    """

    name = "simulated"
    sizes_at_fill = True
    real_money = False

    def __init__(
        self,
        symbols: Sequence[str],
        rules: TradingRules,
        *,
        periods_per_year: float,
        store: Path,
        interest_days: InterestDays | None = None,
        sessions: Sessions | None = None,
        bar_length: np.timedelta64 | None = None,
        faults: SimulatedFaults | None = None,
        durable: bool = True,
    ) -> None:
        self.symbols, self.faults = tuple(symbols), faults or SimulatedFaults()
        by_day = rules.financing_bps_per_year is not None
        if by_day and interest_days is None:
            raise UserError("financing_bps_per_year is charged by calendar day; give the broker interest_days.")
        if bar_length is None and (self.faults.sim_latency_s or self.faults.sim_latency_jitter_s):
            raise UserError("sim_latency_s delays orders within a bar; give the broker the bar_length.")
        self._rules, self._periods_per_year = rules, periods_per_year
        self._interest_days = interest_days if by_day else None
        self._sessions, self._length = sessions, bar_length
        self._chance = Chance(self.faults)
        terms = {"symbols": list(symbols), "periods_per_year": periods_per_year, **asdict(rules)}
        self._store = AccountStore(store, terms=terms, durable=durable)
        self._time = self._closed_at = _NO_TIME
        self._away = self._n_told = self._n_orders = 0
        self._open: dict[str, StoredOrder] = {}
        self._load()
        self._away = 0  # outages end with bars, and a session that starts has none to show before the broker answers

    @property
    def quantities(self) -> QuantityRules:
        """Any quantity; an order below the kernel's smallest is not filled, even if it closes a position."""
        smallest = SMALLEST_ORDER * max(self._account.equity, 0.0)
        closes = zip(self.symbols, self._account.market.closes, strict=True)
        return QuantityRules(smallest={symbol: smallest / close for symbol, close in closes if close > 0.0})

    def account(self) -> AccountState:
        self._answer()
        account = self._account
        values = [n * close for n, close in zip(account.holdings, account.market.closes, strict=True)]
        power = account.equity * self._rules.leverage - sum(map(abs, values))
        positions = {symbol: exact(n) for symbol, n in zip(self.symbols, account.holdings, strict=True) if n}
        return AccountState(account.cash, account.equity, max(power, 0.0), positions)

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        self._answer()
        known = self._open.values() if client_order_ids is None else self._store.orders(client_order_ids)
        return [order.update for order in known]

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        self._answer()
        known = {o.request.client_order_id: o for o in self._store.orders([o.client_order_id for o in orders])}
        change = Change()
        for request in orders:
            if request.client_order_id not in known:
                order = known[request.client_order_id] = self._taken(request, self._n_orders + len(change.new) + 1)
                change.new.append(order)
        if change.new:
            self._write(change)
            if self._chance.loses_answer(change.new[0].request.client_order_id):
                raise BrokerUnavailable("The simulated broker's answer was lost (sim_lost_answer_rate).")
        return [known[request.client_order_id].update for request in orders]

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        self._answer()
        chosen = [self._open[each] for each in dict.fromkeys(client_order_ids) if each in self._open]
        if chosen:
            self._write(canceled(chosen, self._closed_at))

    def market_closed_bar(self, bars: BarSet) -> None:
        """Fill orders, charge interest, and close positions at stops, with these bars."""
        time, account = bars.time.astype("datetime64[ns]"), self._account
        if not np.isnat(self._time) and time <= self._time:
            return
        is_quiet = not self._open and not any(account.holdings)
        is_first = bool(np.isnat(self._time))
        had = Moment(self._closed_at, account.market.closes, account.market.half_spreads, account.fillable)
        bar, change = account.see(bars), Change()
        self._time, self._closed_at = time, bars.closed_at.astype("datetime64[ns]")
        if not is_first:
            change = self._matching.match(
                self._open.values(),
                bar,
                had,
                span=Span(had.closed_at if self._length is None else self._closed_at - self._length, self._closed_at),
                days=None if self._interest_days is None else self._interest_days(time),
                first_number=self._n_told + 1,
            )
            self._n_told += len(change.events)
        self._away = max(0, self._away - 1)
        if not self._away and self._chance.outage_begins(time):
            self._away = self.faults.sim_outage_bars
        self._write(change, self._state(), quiet=is_quiet and not change.events)

    def adjust(self, adjustment: Adjustment) -> None:
        """Change cash and a position without an order, as a deposit or a split does, and report it once by `poll`."""
        self._answer()
        _, kind, symbol, quantity, cash, *_ = adjustment
        if symbol and symbol not in self.symbols:
            raise UserError(f"{symbol} cannot be held in this account, whose symbols are {', '.join(self.symbols)}.")
        i = self.symbols.index(symbol) if symbol else None
        self._account.adjust(i, quantity, cash, splits=kind == "split")
        self._write(Change(events=[adjustment]), self._state())

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        self._answer()
        events, number = self._store.events_after(int(cursor or 0))
        return events, str(number) if events else cursor

    def now(self) -> np.datetime64:
        """The close of the last bar; before the first, the time of this machine."""
        self._answer()
        return np.datetime64("now", "ns") if np.isnat(self._closed_at) else self._closed_at

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        self._answer()
        return [] if self._sessions is None else self._sessions(first, last)

    def close(self) -> None:
        self._store.close()

    def _taken(self, request: OrderRequest, number: int) -> StoredOrder:
        """A new order, accepted or rejected."""
        name, symbol, *_ = request
        reason = self._chance.rejection(name, symbol)
        if symbol not in self.symbols:
            reason = f"{symbol} cannot be traded here"
        elif self._account.margin_called:
            reason = "the account could not pay for what it borrowed"
        update = OrderUpdate(
            name, symbol, "accepted" if reason is None else "rejected", None, Decimal(0), self._closed_at, reason or ""
        )
        latency = self._chance.latency(name)
        arrives = self._closed_at + latency if latency and not np.isnat(self._closed_at) else None
        return StoredOrder(request, update, arrives, number)

    def _answer(self) -> None:
        """Raise BrokerUnavailable during an outage."""
        if self._away:
            raise BrokerUnavailable("The simulated broker cannot be reached (sim_outage_rate).")

    def _load(self) -> None:
        """Load the account from its file."""
        self._account = account = MarketAccount(len(self.symbols), self._rules, self._periods_per_year)
        keeps_rest = self.faults.sim_rest_of_order == "open"
        self._matching = Matching(self.symbols, account, self._chance, keeps_rest=keeps_rest)
        if (state := self._store.state()) is not None:
            account.set_state(state["account"])
            self._time, self._closed_at = (np.datetime64(state[name], "ns") for name in ("time", "closed_at"))
            self._away, self._n_told = state["away"], state["n_told"]
        self._n_orders = self._store.n_orders()
        self._open = {order.request.client_order_id: order for order in self._store.open_orders()}

    def _state(self) -> dict[str, Any]:
        times = {"time": str(self._time), "closed_at": str(self._closed_at)}
        return {"account": self._account.state(), **times, "away": self._away, "n_told": self._n_told}

    def _write(self, change: Change, state: dict[str, Any] | None = None, *, quiet: bool = False) -> None:
        try:
            self._store.write(change, state, quiet=quiet)
        except BaseException:
            self._load()  # undo the change in memory
            raise
        self._n_orders += len(change.new)
        for order in (*change.new, *change.changed):
            if order.update.status in ENDED:
                self._open.pop(order.request.client_order_id, None)
            else:
                self._open[order.request.client_order_id] = order
