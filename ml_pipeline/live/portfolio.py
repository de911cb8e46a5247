"""The account of a session in its own books: cash, holdings and ledger, added up from the broker's events.

The books contain only what the broker reported, and add it up in the order of the accounting kernel. The ledger of a
simulated broker's account therefore has the same bits as the backtest's.

A symbols.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.live.brokers.broker import Adjustment, Charge, Fill, OrderUpdate, exact
from ml_pipeline.trading.accounts.bar_by_bar import BarPrices, CarriedPrices, Filled, Prices, cash_after, worth_of
from ml_pipeline.trading.accounts.execution import RUIN_FRACTION, weight_in_equity
from ml_pipeline.trading.accounts.ledger import LedgerRecorder, LedgerRow
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Terms
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.within_bar import within_steps
from ml_pipeline.trading.market.bar_set import BarSet

_STEPS = within_steps(PLAIN_OPS)


class AttemptedPrices:
    """Prices of orders and exits, bar by bar, of an account that acts within bars.

    `entries`: average entry prices, (A,), 0 without a position.
    """

    def __init__(self, n_symbols: int, terms: Terms) -> None:
        self.entries: Prices = [0.0] * n_symbols
        self._terms = terms
        self._closing_terms = terms.closing()

    def take(
        self,
        bar: BarPrices,
        decided: Prices,
        *,
        before: Sequence[float],
        filled: Sequence[float],
        known: Mapping[int, float],
        closing: bool,
    ) -> tuple[Prices, Prices]:
        """(prices of orders, prices of exits) of the next bar; updates `entries`.

        decided: closes at which the orders were decided. before: holdings before the bar. filled: quantities of the
        orders. known: prices that the broker reported, by symbol. closing: the orders had no limit.
        """
        terms = self._closing_terms if closing else self._terms
        orders_at, exits_at = list(bar.opens), [0.0] * len(before)
        for i, had in enumerate(before):
            opened, low, high, can = bar.opens[i], bar.lows[i], bar.highs[i], bar.fillable[i]
            entry = self.entries[i]
            if i in known:
                orders_at[i] = known[i]
            elif terms.limit >= 0.0:
                _, orders_at[i] = _STEPS.limit_order(0.0, had, entry, decided[i], opened, low, high, can, terms)
            held = had + filled[i]
            self.entries[i] = entry = _STEPS.entry_price(entry, had, filled[i], held, orders_at[i])
            _, exits_at[i] = _STEPS.exit_order(
                filled[i], orders_at[i], held, entry, opened, low, high, bar.closes[i], can, terms
            )
        return orders_at, exits_at


# Number of closed bars with events whose IDs of fills and charges are kept.
_BARS_REMEMBERED = 3

Entry = OrderUpdate | Fill | Charge | Adjustment
"""An event that the books can take."""
_Part = Literal["orders", "exits", "margin_call"]
_PARTS: tuple[_Part, ...] = ("orders", "exits", "margin_call")


class _Sums(NamedTuple):
    """The account after all events since the last bar. filled: by orders; exited: by everything else, (A,).

    Quantities are Decimals or, in books that count in floats, floats.
    """

    cash: float
    costs: float
    holdings: list[Any]
    filled: list[Any]
    exited: list[Any]
    prices: dict[int, float]
    called_at: dict[int, float]


class AccountBook:
    """Cash and holdings of a session that began with `rules.initial_cash`, and the rows of its ledger.

    Call `apply` for each of the broker's events in order, then `close_bar` for the bar in which they happened. Events
    take effect at once; costs and the ledger's row cover the time since the last bar.
    """

    def __init__(self, symbols: Sequence[str], rules: TradingRules, *, decimal: bool = False) -> None:
        """decimal: add quantities up as decimals, as brokers do; otherwise as floats, with the bits of the kernel and
        of the simulated broker.
        """
        self.symbols, self.rules = tuple(symbols), rules
        self._decimal = decimal
        self._number: Any = exact if decimal else float  # of a quantity
        self.margin_called = False
        self._index = {symbol: i for i, symbol in enumerate(self.symbols)}
        self._terms = rules.terms(1.0)  # rates are not used
        n_symbols = len(self.symbols)
        self._cash, self._holdings = float(rules.initial_cash), [self._number(0)] * n_symbols
        self._market = CarriedPrices(n_symbols)
        self._attempted = AttemptedPrices(n_symbols, self._terms) if rules.acts_within_bars else None
        self._first_spreads: Prices | None = None
        self._begun = False
        self._events: list[Fill | Charge | Adjustment] = []
        self._attempted_at: dict[int, float] = {}
        self._ids: list[dict[str, None]] = [{}]  # of each bar, in order of arrival
        self._summed: _Sums | None = None

    @property
    def cash(self) -> float:
        return self._sums().cash

    @property
    def holdings(self) -> list[float]:
        """Signed quantities for the kernel, (A,)."""
        return list(map(float, self._sums().holdings))

    @property
    def positions(self) -> dict[str, Decimal]:
        """Signed quantities to the last digit by symbol, without those of 0, as a broker reports them."""
        return {symbol: exact(n) for symbol, n in zip(self.symbols, self._sums().holdings, strict=True) if n}

    @property
    def closes(self) -> Prices:
        """The last close of each symbol, (A,), 0 before its first."""
        return list(self._market.closes)

    @property
    def half_spreads(self) -> Prices:
        """The last half-spread of each symbol, (A,), 0 if unknown."""
        return list(self._market.half_spreads)

    @property
    def equity(self) -> float:
        """Cash and positions at the last closes."""
        sums = self._sums()
        return sums.cash + worth_of(list(map(float, sums.holdings)), self._market.closes)

    @property
    def entries(self) -> Prices:
        """The average entry price of each position after all events, (A,); 0 without a position.

        Known only under rules that act within bars.
        """
        if self._attempted is None:
            return [0.0] * len(self.symbols)
        sums, found = self._sums(), []
        for i, (entry, quantity) in enumerate(zip(self._attempted.entries, self._holdings, strict=True)):
            had, filled, price = float(quantity), float(sums.filled[i]), sums.prices.get(i, 0.0)
            found.append(_STEPS.entry_price(entry, had, filled, had + filled, price) if sums.holdings[i] else 0.0)
        return found

    @property
    def ended(self) -> bool:
        """Whether an episode would end here: ruin, or a borrowing fee that could not be paid."""
        return self.margin_called or self.equity <= RUIN_FRACTION * self.rules.initial_cash

    def weights(self, clip: float) -> list[float]:
        """Each holding as a fraction of equity, clipped to -clip..clip, (A,), as in observations."""
        equity = self.equity
        worths = (n * close for n, close in zip(self.holdings, self._market.closes, strict=True))
        return [weight_in_equity(worth, equity, clip) for worth in worths]

    def recorder(self, *, quotes: bool) -> LedgerRecorder:
        """A new recorder for the rows of `close_bar`. quotes: whether bars have half-spreads."""
        by_day = self.rules.financing_bps_per_year is not None
        return LedgerRecorder(self.symbols, quotes=quotes, exits=self.rules.acts_within_bars, by_day=by_day)

    def take_over(self, cash: float, positions: Mapping[str, Decimal | float | str]) -> None:
        """Start with these positions. Raises UserError if the session does not trade one of the symbols."""
        self._cash, self._summed = float(cash), None
        for symbol, quantity in positions.items():
            if quantity := exact(quantity):
                self._holdings[self._at(symbol)] = self._number(quantity)

    def warm_up(self, bars: BarSet) -> None:
        """Take a bar before the first row of the ledger."""
        self._market.take(bars)
        if self._first_spreads is None:
            self._first_spreads = self._market.half_spreads

    def apply(self, event: Entry) -> bool:
        """Apply an event of the broker; False for one other than an update that was applied before.

        Raises UserError for a fill of a symbol that the session does not trade. An adjustment of one changes cash only.
        """
        if isinstance(event, OrderUpdate):
            if event.price is not None:
                self._attempted_at[self._at(event.symbol)] = event.price
            return True
        if isinstance(event, Fill):
            self._at(event.symbol)
        if isinstance(event, Fill | Adjustment):
            event = event._replace(quantity=exact(event.quantity))
        own_id = _id_of(event)
        if any(own_id in of_bar for of_bar in self._ids):
            return False
        self._ids[-1][own_id] = None
        self._events.append(event)
        self._summed = None
        return True

    def after(self, events: Iterable[Entry]) -> tuple[float, dict[str, Decimal]]:
        """(cash, positions) as they would be after these events; nothing changes."""
        copied = copy.copy(self)
        copied._events, copied._ids = list(self._events), [dict(of_bar) for of_bar in self._ids]
        copied._attempted_at = dict(self._attempted_at)
        for event in events:
            copied.apply(event)
        return copied.cash, copied.positions

    def split(self, symbol: str, factor: float) -> None:
        """Multiply the last close and the entry price of a symbol, whose quantity was divided by this factor."""
        i = self._at(symbol)
        self._market.split(i, factor)
        if self._attempted is not None:
            self._attempted.entries[i] *= factor

    def close_bar(self, bars: BarSet, *, closing: bool = False) -> LedgerRow:
        """The row of the ledger at the close of these bars, with all events since the last one.

        closing: the orders of the bar closed all positions, without a limit.
        """
        decided = self._market.closes
        spreads = self._market.half_spreads
        bar = self._market.take(bars)
        if not self._begun:  # nothing is filled yet, so the prices have no effect, as in a backtest
            decided, spreads = bar.closes, self._first_spreads or bar.half_spreads
            if self._attempted is not None:  # a position that was taken over counts as opened at this close
                had = zip(self._holdings, bar.closes, strict=True)
                self._attempted.entries = [close if quantity else 0.0 for quantity, close in had]
        sums, before = self._sums(), list(map(float, self._holdings))
        holdings, filled = list(map(float, sums.holdings)), list(map(float, sums.filled))
        prices = list(decided if self.rules.fill_at == "close" or not self._begun else bar.opens)
        exit_prices = [0.0] * len(before)
        if self._attempted is not None and self._begun:
            known = {**self._attempted_at, **sums.prices}
            if self.rules.fill_at == "close":
                known = {**dict(enumerate(decided)), **known}
            prices, exit_prices = self._attempted.take(
                bar, decided, before=before, filled=filled, known=known, closing=closing
            )
        for i, price in sums.prices.items():
            prices[i] = price
        for i, price in sums.called_at.items():
            exit_prices[i] = price
        charges = [event for event in self._events if isinstance(event, Charge)]
        row = LedgerRow(
            time=bars.time,
            equity=sums.cash + worth_of(holdings, bar.closes),
            cash=sums.cash,
            costs=sums.costs,
            closes=bar.closes,
            positions=holdings,
            filled=filled,
            fill_prices=prices,
            half_spreads=spreads if bars.half_spread is not None else None,
            exited=list(map(float, sums.exited)) if self._attempted is not None else None,
            exit_prices=exit_prices if self._attempted is not None else None,
            interest_days=self._days(charges),
        )
        self.margin_called = self.margin_called or any(charge.margin_called for charge in charges)
        self._begin_bar(sums)
        return row

    def state(self) -> dict[str, Any]:
        """The whole state as JSON data, for `set_state`."""
        return {
            "cash": self._cash,
            "holdings": list(map(_as_number, self._holdings)),
            "entries": None if self._attempted is None else self._attempted.entries,
            "market": self._market.state(),
            "first_spreads": self._first_spreads,
            "begun": self._begun,
            "margin_called": self.margin_called,
            "events": [_as_data(event) for event in self._events],
            "tried_at": sorted(self._attempted_at.items()),
            "ids": [list(of_bar) for of_bar in self._ids],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a `state` of books with the same symbols and rules."""
        # Journals from before decimals have floats, such as 0.1 + 0.2.
        old = [round(n, 9) if self._decimal and isinstance(n, float) else n for n in state["holdings"]]
        self._cash, self._holdings = state["cash"], list(map(self._number, old))
        if self._attempted is not None:
            self._attempted.entries = list(state["entries"])
        self._market.set_state(state["market"])
        self._first_spreads, self._begun = state["first_spreads"], state["begun"]
        self.margin_called = state["margin_called"]
        self._events = [_from_data(data) for data in state["events"]]
        self._attempted_at = dict(state["tried_at"])
        self._ids = [dict.fromkeys(of_bar) for of_bar in state["ids"]]
        self._summed = None

    def _begin_bar(self, sums: _Sums) -> None:
        self._cash, self._holdings, self._begun = sums.cash, sums.holdings, True
        self._events, self._attempted_at, self._summed = [], {}, None
        if self._ids[-1]:
            self._ids = [*self._ids[-_BARS_REMEMBERED:], {}]

    def _sums(self) -> _Sums:
        if self._summed is None:
            self._summed = self._add_up()
        return self._summed

    def _add_up(self) -> _Sums:
        n_symbols = len(self.symbols)
        cash, costs, holdings = self._cash, 0.0, list(self._holdings)
        quantities = {part: [self._number(0)] * n_symbols for part in _PARTS}
        prices: dict[_Part, dict[int, float]] = {part: {} for part in _PARTS}
        for part in _PARTS:
            fills = [event for event in self._events if isinstance(event, Fill) and _part_of(event) == part]
            fills.sort(key=lambda fill: self._index[fill.symbol])  # stable: fills of one symbol keep their order
            told = [Filled(float(fill.quantity), fill.price, fill.costs) for fill in fills]
            cash, paid = cash_after(cash, told, may_borrow=self._terms.maintenance > 0.0)
            costs = costs + paid
            for fill in fills:
                i = self._index[fill.symbol]
                had, quantity = quantities[part][i], quantities[part][i] + self._number(fill.quantity)
                prices[part][i] = _average(prices[part].get(i, 0.0), float(had), fill, float(quantity))
                quantities[part][i] = quantity
            for i in prices[part]:
                holdings[i] = holdings[i] + quantities[part][i]
        for event in self._events:
            if isinstance(event, Charge):
                cash, costs = cash - event.amount, costs + event.amount
            elif isinstance(event, Adjustment):
                cash = cash + event.cash
                if event.symbol in self._index:
                    i = self._index[event.symbol]
                    holdings[i] = holdings[i] + self._number(event.quantity)
        exited = [one + other for one, other in zip(quantities["exits"], quantities["margin_call"], strict=True)]
        left_at = {**prices["exits"], **prices["margin_call"]}
        return _Sums(cash, costs, holdings, quantities["orders"], exited, prices["orders"], left_at)

    def _days(self, charges: list[Charge]) -> float | None:
        if self.rules.financing_bps_per_year is None:
            return None
        return sum((charge.days for charge in charges if charge.days is not None), 0.0)

    def _at(self, symbol: str) -> int:
        if symbol not in self._index:
            raise UserError(
                f"The broker reported {symbol}, which this session does not trade. {nearest(symbol, self.symbols)} "
                "Use a separate account for the session."
            )
        return self._index[symbol]


def _id_of(event: Fill | Charge | Adjustment) -> str:
    match event:
        case Fill():
            return f"fill {event.fill_id}"
        case Charge():
            return f"charge {event.charge_id}"
    return f"adjustment {event.adjustment_id}"


def _part_of(fill: Fill) -> _Part:
    return "margin_call" if fill.margin_called else "exits" if fill.exit else "orders"


def _average(price: float, had: float, fill: Fill, quantity: float) -> float:
    """The average price of the fills of one bar; a single fill keeps its price to the bit."""
    if not had or not quantity:
        return fill.price
    return (price * had + fill.price * float(fill.quantity)) / quantity


def _as_data(event: Fill | Charge | Adjustment) -> list[Any]:
    values = {name: _as_number(value) for name, value in event._asdict().items()}
    return [type(event).__name__, {**values, "time": str(event.time)}]


def _from_data(data: list[Any]) -> Fill | Charge | Adjustment:
    kind: Any = {each.__name__: each for each in (Fill, Charge, Adjustment)}[data[0]]
    values = {**data[1], "time": np.datetime64(data[1]["time"])}
    if "quantity" in values:
        values["quantity"] = exact(values["quantity"])
    return kind(**values)


def _as_number(value: Any) -> Any:
    """A Decimal as text for JSON; another value as it is."""
    return str(value) if isinstance(value, Decimal) else value
