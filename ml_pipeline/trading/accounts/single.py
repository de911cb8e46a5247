"""One account in a market, stepped by the kernel in plain Python or as machine code, with the same results.

A assets. Both classes hold `cash`, `costs` (of the last step), `equity` and `margin_called` (see `execution`), and one
number per asset in `holdings` and `filled`; those that trade within bars (see `within_bar`) also in `exited` and
`exit_prices`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.compiled_kernel import compiled_step, compiled_step_within
from ml_pipeline.trading.accounts.execution import PLAIN, weight_in_equity
from ml_pipeline.trading.accounts.orders import Overrides, Terms
from ml_pipeline.trading.accounts.within_bar import Bar, Book
from ml_pipeline.trading.market.data import FloatArray

# Attributes left out of a pickled account: machine code, the market's tables, and views.
_NOT_PICKLED = {"_step", "_tables", "_arrays", "_targets", "_trades", "_seen"}


# Further state of an account that trades within bars.
_CHANGING_WITHIN = ("entries", "exited", "exit_prices", "called", "fill_prices", "days")
# A limit that no sum of weights reaches.
_UNLIMITED = 1e6


class BarTables(NamedTuple):
    """The bar after each order, each (bars - 1, A); row t belongs to an order decided at bar t. See `Bar`.

    days: float64 (bars - 1, 1).
    """

    opens: FloatArray
    lows: FloatArray
    highs: FloatArray
    can_exit: NDArray[np.bool_]
    days: FloatArray


class FillTables(NamedTuple):
    """Prices by bar, each (bars, A); row t of the first two belongs to an order decided at bar t.

    bars: for accounts that trade within bars.
    """

    prices: FloatArray
    half_spreads: FloatArray
    closes: FloatArray
    bars: BarTables | None = None


class PlainAccount:
    """An account of floats and lists, which needs no compiler; one asset uses the kernel without loops.

    overrides: fills of the next step; None: as the kernel assumes.
    """

    overrides: Overrides | None = None
    _changing: tuple[str, ...] = ("cash", "costs", "equity", "margin_called", "holdings", "orders", "filled", "closes")

    def __init__(self, tables: FillTables, terms: Terms, clip: float = math.inf) -> None:
        self.set_terms(terms)
        self._clip = clip
        self._no_spreads = [0.0] * tables[1].shape[1]
        self.bind(tables)

    def set_terms(self, terms: Terms) -> None:
        """Apply these costs and limits from the next step on."""
        self._terms = terms
        self._closing_terms = terms.closing()

    def bind(self, tables: FillTables) -> None:
        """Read prices from `tables`. A pickled account holds none, so call this after unpickling."""
        self._fill_prices, spreads, self._market_closes, self._bars = tables
        self._half_spreads = spreads if spreads.any() else None

    def __getstate__(self) -> dict[str, Any]:
        of_market = {"_fill_prices", "_half_spreads", "_market_closes", "_bars"}
        return {name: value for name, value in self.__dict__.items() if name not in of_market}

    def state(self) -> dict[str, Any]:
        """The state that changes from step to step, for `set_state`."""
        return {name: getattr(self, name) for name in self._names()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the `state` of an account with the same terms and assets."""
        for name in self._names():
            setattr(self, name, state[name])

    def _names(self) -> tuple[str, ...]:
        return self._changing if self._bars is None else (*self._changing, *_CHANGING_WITHIN)

    def weights(self) -> list[float]:
        """Each holding as a fraction of the equity, within -clip..clip; 0 if the equity is not positive."""
        equity, clip = self.equity, self._clip
        return [weight_in_equity(n * close, equity, clip) for n, close in zip(self.holdings, self.closes, strict=True)]

    def begin(self, bar: int, cash: float) -> None:
        n_assets = len(self._no_spreads)
        self.cash = self.equity = cash
        self.costs = 0.0
        self.margin_called = False
        self.holdings, self.orders, self.filled = ([0.0] * n_assets for _ in range(3))
        self.closes = self._market_closes[bar].tolist()
        self.days = 0.0
        self.entries, self.exited, self.exit_prices, self.called, self.fill_prices = (
            [0.0] * n_assets for _ in range(5)
        )

    def step(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool = False) -> None:
        """Fill the orders decided at `bar`, and value the account at the close of the next bar.

        closing: apply no limits, so that weights of 0 close every position.
        """
        terms = self._closing_terms if closing else self._terms
        spreads = self._half_spreads
        holdings, orders, filled = self.holdings, self.orders, self.filled
        if len(holdings) == 1 and self._bars is None and self.overrides is None:
            # `item` takes 0.1 us, a row as a list 0.4.
            price, close = self._fill_prices.item(bar, 0), self._market_closes.item(bar + 1, 0)
            spread = 0.0 if spreads is None else spreads.item(bar, 0)
            self.cash, self.costs, self.equity, self.margin_called, holdings[0], orders[0], filled[0] = PLAIN.step_one(
                weights[0], may_trade[0], self.cash, holdings[0], price, spread, close, terms
            )
            self.closes = [close]
            return
        self.closes = closes = self._market_closes[bar + 1].tolist()
        prices = self._fill_prices[bar].tolist()
        half_spreads = self._no_spreads if spreads is None else spreads[bar].tolist()
        if self._bars is not None:
            exits = [0.0] * len(closes)
            book = Book(
                holdings, self.entries, orders, filled, exits,
                self.exited, self.exit_prices, self.called, self.fill_prices,
            )  # fmt: skip
            self.cash, self.costs, self.equity, self.margin_called = PLAIN.step_within(
                weights, may_trade, self.cash, self._bar(bar, prices, half_spreads), book, terms, self.overrides
            )
            return
        self.cash, self.costs, self.equity, self.margin_called = PLAIN.step(
            weights, may_trade, self.cash, holdings, prices, half_spreads, closes, terms, orders, filled, self.overrides
        )

    def _bar(self, bar: int, prices: list[float], half_spreads: list[float]) -> Bar:
        assert self._bars is not None
        opens, lows, highs, can_exit, (self.days,) = (table[bar].tolist() for table in self._bars)
        decided = self._market_closes[bar].tolist()
        return Bar(decided, prices, half_spreads, opens, lows, highs, self.closes, can_exit, self.days)


class LimitTrackingAccount(PlainAccount):
    """`PlainAccount` that reports in `binding_limits` which limits were binding in the last step.

    A limit is binding if the fills would differ without it. "cash" means that buys were scaled down to the cash,
    "margin_call" that the broker closed positions.
    """

    _changing = (*PlainAccount._changing, "binding_limits")

    def set_terms(self, terms: Terms) -> None:
        super().set_terms(terms)
        self._relaxed = {name: relaxed for name, relaxed in _without_each(terms).items() if relaxed != terms}

    def begin(self, bar: int, cash: float) -> None:
        super().begin(bar, cash)
        self.binding_limits: list[str] = []

    def step(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool = False) -> None:
        cash, holdings, entries = self.cash, self.holdings.copy(), self.entries.copy()
        super().step(bar, weights, may_trade, closing=closing)
        short_of_cash = any(order > filled for order, filled in zip(self.orders, self.filled, strict=True))
        self.binding_limits = ["cash"] if short_of_cash else []
        if any(self.called):
            self.binding_limits.append("margin_call")
        if closing:
            return
        prices = self._fill_prices[bar].tolist()
        spreads = self._no_spreads if self._half_spreads is None else self._half_spreads[bar].tolist()
        for name, terms in self._relaxed.items():
            orders, filled = self.orders.copy(), self.filled.copy()
            if self._bars is None:
                PLAIN.step(
                    weights, may_trade, cash, holdings.copy(), prices, spreads, self.closes, terms, orders, filled
                )
            else:
                others = ([0.0] * len(filled) for _ in range(5))
                book = Book(holdings.copy(), entries.copy(), orders, filled, *others)
                PLAIN.step_within(weights, may_trade, cash, self._bar(bar, prices, spreads), book, terms)
            if filled != self.filled:
                self.binding_limits.append(name)


def _without_each(terms: Terms) -> dict[str, Terms]:
    leverage = max(1.0, terms.max_gross)
    without = {
        "max_position": terms._replace(lowest=-leverage if terms.lowest else 0.0, highest=leverage),
        "max_gross": terms._replace(max_gross=1.0 if leverage == 1.0 else _UNLIMITED),
        "lot_size": terms._replace(lot=0.0),
        "min_order": terms._replace(smallest_order=0.0),
        "min_cash": terms._replace(reserve=1.0 - leverage),
    }
    # Relative weights are in units of the largest trade, so it does not limit them.
    return without if terms.relative else {**without, "trade_limit_percent": terms._replace(max_trade=math.inf)}


class CompiledAccount:
    """An account of arrays, stepped by machine code: the fastest for several assets."""

    def __init__(self, tables: FillTables, terms: Terms, clip: float = math.inf) -> None:
        self.bind(tables)
        self._clip = clip
        self.set_terms(terms)
        self._n_assets = tables[0].shape[1]
        self._step = compiled_step() if tables.bars is None else compiled_step_within()
        self.begin(0, 1.0)
        self.step(0, [0.0] * self._n_assets, [False] * self._n_assets)  # compile now, not in the first step

    def set_terms(self, terms: Terms) -> None:
        """As `PlainAccount.set_terms`."""
        self._terms_and_clip = (*map(float, terms), self._clip)
        self._closing_terms_and_clip = (*map(float, terms.closing()), self._clip)
        if hasattr(self, "_money"):
            self._money[2:] = self._terms_and_clip

    def begin(self, bar: int, cash: float) -> None:
        self._account = np.zeros((6 if self._tables.bars is None else 12, self._n_assets))
        self._targets, self._trades, self._seen = self._account[3:6]
        self._money = np.array([cash, 0.0, *self._terms_and_clip])
        self.equity = cash
        self.margin_called = False
        self._bar = bar

    def step(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool = False) -> None:
        """As `PlainAccount.step`."""
        if closing:
            self._money[2:] = self._closing_terms_and_clip
        targets, trades = self._targets, self._trades
        for i, weight in enumerate(weights):  # faster than a slice, which first turns the list into an array
            targets[i] = weight
            trades[i] = may_trade[i]
        self.equity, self.margin_called = self._step(bar, self._account, self._money, *self._arrays)
        if closing:
            self._money[2:] = self._terms_and_clip
        self._bar = bar + 1

    def state(self) -> dict[str, Any]:
        """As `PlainAccount.state`."""
        values = {"equity": self.equity, "margin_called": self.margin_called, "bar": self._bar}
        return {**values, "account": self._account, "money": self._money[:2]}

    def set_state(self, state: dict[str, Any]) -> None:
        """As `PlainAccount.set_state`."""
        self.equity, self.margin_called, self._bar = state["equity"], state["margin_called"], state["bar"]
        self._account[:], self._money[:2] = state["account"], state["money"]

    def weights(self) -> FloatArray:
        """As `PlainAccount.weights`, as a view that is valid until the next step."""
        return self._seen

    @property
    def cash(self) -> float:
        return float(self._money[0])

    @property
    def costs(self) -> float:
        return float(self._money[1])

    @property
    def closes(self) -> list[float]:
        return self._tables.closes[self._bar].tolist()

    @property
    def holdings(self) -> list[float]:
        return self._account[0].tolist()

    @property
    def filled(self) -> list[float]:
        return self._account[2].tolist()

    @property
    def exited(self) -> list[float]:
        return self._account[8].tolist()

    @property
    def exit_prices(self) -> list[float]:
        return self._account[9].tolist()

    @property
    def fill_prices(self) -> list[float]:
        return self._account[11].tolist()

    def bind(self, tables: FillTables) -> None:
        """As `PlainAccount.bind`."""
        self._tables = tables
        self._arrays = tables[:3] + (tables.bars or ())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_clip": state["_terms_and_clip"][-1], **state})  # an earlier version had none
        self._targets, self._trades, self._seen = self._account[3:6]  # views do not survive pickling
        self._step = compiled_step() if len(self._account) == 6 else compiled_step_within()
