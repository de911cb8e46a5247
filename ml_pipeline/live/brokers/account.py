"""One bar of the simulated broker's account: the kernel's step on tables with one row, returned as fills and a charge.

A symbols. Environments take the same step, so the numbers have the same bits as in a backtest.
"""

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.bar_by_bar import BarPrices, CarriedPrices, Filled, cash_after, interest_due, worth_of
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, order_steps
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.single import BarTables, FillTables, PlainAccount
from ml_pipeline.trading.market.bar_set import BarSet

_STEPS = order_steps(PLAIN_OPS)


class BarResult(NamedTuple):
    """The result of a bar, by index of the symbol. tried_at: the price of each symbol's order, filled or not, (A,).

    interest: money paid for borrowing. margin_called: it could not be paid.
    """

    filled: dict[int, Filled]
    exited: dict[int, Filled]
    called: dict[int, Filled]
    tried_at: list[float]
    interest: float
    margin_called: bool


class MarketAccount:
    """An account under `rules` whose bars arrive one by one. market: prices at the last close."""

    def __init__(self, n_symbols: int, rules: TradingRules, periods_per_year: float) -> None:
        self.rules = rules
        self.market = CarriedPrices(n_symbols)
        self.fillable = [False] * n_symbols
        self._terms = rules.terms(periods_per_year)
        zeros = np.zeros((2, n_symbols))
        self._account = PlainAccount(self._tables(zeros[:1], [0.0] * n_symbols, zeros, None, 1.0), self._terms)
        self._account.begin(0, float(rules.initial_cash))

    @property
    def cash(self) -> float:
        return self._account.cash

    @property
    def equity(self) -> float:
        return self._account.equity

    @property
    def holdings(self) -> list[float]:
        return self._account.holdings

    @property
    def margin_called(self) -> bool:
        return self._account.margin_called

    def can_fill(self, bar: BarPrices, before: list[float], fillable_before: list[bool]) -> list[bool]:
        """Whether this bar can fill an order that was decided at the closes `before`, (A,)."""
        if self.rules.fill_at == "close":
            return fillable_before
        return [can and close > 0.0 for can, close in zip(bar.fillable, before, strict=True)]

    def sized(
        self, weights: list[float], may_trade: list[bool], prices: list[float], *, closing: bool
    ) -> tuple[list[float], float]:
        """(signed quantities that reach the weights at these prices, (A,), equity at them)."""
        terms, orders = self._terms.closing() if closing else self._terms, [0.0] * len(weights)
        account = self._account
        equity = PLAIN.size_orders(weights, may_trade, account.cash, account.holdings, prices, terms, orders)
        return orders, equity

    def weight_of(self, i: int, quantity: float, price: float, equity: float, *, closing: bool) -> float:
        """The weight whose order for symbol i has this signed quantity."""
        if self._terms.relative and not closing:
            return quantity * price / equity / self._terms.max_trade
        return (self._account.holdings[i] + quantity) * price / equity

    def see(self, bars: BarSet) -> BarPrices:
        """Take the next bars as the last ones. Returns them with missing prices filled in."""
        bar = self.market.take(bars)
        self.fillable = bar.fillable
        return bar

    def step(
        self,
        bar: BarPrices,
        prices: list[float],
        *,
        decided: list[float],
        half_spreads: list[float],
        weights: list[float],
        may_trade: list[bool],
        days: float | None,
        closing: bool,
    ) -> BarResult:
        """Fill the orders at `prices`, or within their limits, and end the bar.

        decided: closes at which the orders were decided, with these half-spreads. days: of interest; None: rates are
        per bar. closing: no limit applies to the orders.
        """
        account = self._account
        closes = np.array([decided, bar.closes])
        account.bind(self._tables(np.array([prices]), half_spreads, closes, bar, 1.0 if days is None else days))
        cash = account.cash
        account.step(0, weights, may_trade, closing=closing)
        within = self.rules.acts_within_bars
        tried_at = list(account.fill_prices) if within else list(prices)
        # A margin call closes all that is left, so a symbol is closed by it or before it, not both.
        is_called = [quantity != 0.0 for quantity in account.called]
        left = [0.0 if of_call else quantity for of_call, quantity in zip(is_called, account.exited, strict=True)]
        parts = (
            self._told(account.filled, tried_at, half_spreads),
            self._told(left, account.exit_prices, half_spreads),
            self._told(account.called, bar.closes, half_spreads),
        )
        for part in parts:
            cash, _ = cash_after(cash, part.values(), may_borrow=self._terms.maintenance > 0.0)
        n_days = 1.0 if days is None else days
        interest, margin_called = interest_due(cash, account.holdings, bar.closes, self._terms, days=n_days)
        assert cash - interest == account.cash, "fills and charges add up to the kernel's cash"
        return BarResult(*parts, tried_at, interest, bool(margin_called))

    def adjust(self, i: int | None, quantity: Decimal, cash: float, *, splits: bool) -> None:
        """Change cash, and the position of symbol i, without an order. splits: its price changes inversely."""
        account = self._account
        account.cash += cash
        if i is not None:
            had, account.holdings = account.holdings[i], list(account.holdings)
            account.holdings[i] = has = had + float(quantity)
            if splits and had and has:
                self.market.split(i, had / has)
                account.entries[i] *= had / has
        account.equity = account.cash + worth_of(account.holdings, self.market.closes)

    def state(self) -> dict[str, Any]:
        """The state as plain data, for `set_state`."""
        account = {**self._account.state(), "margin_called": bool(self.margin_called)}
        return {"account": account, "market": self.market.state(), "fillable": self.fillable}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a `state`."""
        self._account.set_state(state["account"])
        self.market.set_state(state["market"])
        self.fillable = list(state["fillable"])

    def _told(self, quantities: list[float], prices: list[float], half_spreads: list[float]) -> dict[int, Filled]:
        """Each quantity other than 0, with its costs."""
        whole = self._terms._replace(lot=0.0)
        told = {}
        for i, quantity in enumerate(quantities):
            if quantity < 0.0:
                _, _, costs = _STEPS.sell(quantity, prices[i], half_spreads[i], whole)
            elif quantity > 0.0:
                _, _, costs = _STEPS.buy(quantity, 1.0, prices[i], half_spreads[i], 0.0, whole)
            else:
                continue
            told[i] = Filled(quantity, prices[i], costs)
        return told

    def _tables(
        self,
        prices: NDArray[np.float64],
        half_spreads: list[float],
        closes: NDArray[np.float64],
        bar: BarPrices | None,
        days: float,
    ) -> FillTables:
        """Tables of a single bar; row 0 has the order's prices, row 1 of the closes the bar's."""
        bars = None
        if self.rules.acts_within_bars:
            opens, lows, highs, can = (
                (prices[0], prices[0], prices[0], []) if bar is None else (bar.opens, bar.lows, bar.highs, bar.fillable)
            )
            bars = BarTables(
                np.array([opens]), np.array([lows]), np.array([highs]), np.array([can], dtype=bool), np.array([[days]])
            )
        return FillTables(prices, np.array([half_spreads]), closes, bars)
