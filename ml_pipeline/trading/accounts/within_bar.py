"""The kernel's step for bars with more than fills at one price: exits within the bar, margin, interest.

In this order:
1. With `sized_at_decision`, orders are sized at the close they were decided on, and pay the price of their fill.
   With `limit`, they are sized there as well and valid for one bar. A buy is filled if the low of the bar is below its
   limit, at the limit or at a lower open; a sale is the mirror image. Otherwise it lapses. If the bar also reaches the
   stop or target of an existing position, that comes first, and an order that would be filled after the open lapses.
   Buys have only the cash from before the bar.
   The average entry price of each position follows from its fills; costs are not part of it.
2. Stop-loss and take-profit are checked between the low and the high of the bar. A stop is filled at its price, or
   at the open of the bar if that is worse; a target at its price, or at the open if that is better. If the bar reaches
   both, the stop is assumed. So a position that was opened at the open of a bar may be closed in it. After a fill at a
   limit within the bar only the close proves that a target was reached.
3. If the account may borrow and its equity at the close is below `maintenance` times the value of its positions, the
   broker closes all of them at the close. The episode continues with the remaining equity unless that is ruin.
4. Short holdings pay their borrowing fee at the close, and negative cash its financing, for the days until the next
   bar. An account that may borrow pays with borrowed money; for others a fee above the cash is a margin call that ends
   the episode, see `execution`.
Closing a position is a market order without limits: it pays the costs of any other. If the account may not borrow, a
buy is scaled down to its cash.

A assets, N accounts; each number of an asset is a float, or an array or tensor (N,), as in `execution`.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple

from ml_pipeline.trading.accounts.orders import (
    Compiled,
    Number,
    Ops,
    Overrides,
    Terms,
    interest_with_debt,
    order_steps,
    override_fills,
)


class Bar(NamedTuple):
    """Prices of a bar, each (A,).

    decided: closes at which the orders were decided. prices, half_spreads: of its orders. opens, lows, highs, closes:
    of the bar itself. can_exit: whether the asset has a bar in which orders can be filled. days: one number for all
    assets, the days of interest charged at the close; 1 if rates are per bar.
    """

    decided: Sequence[Number]
    prices: Sequence[Number]
    half_spreads: Sequence[Number]
    opens: Sequence[Number]
    lows: Sequence[Number]
    highs: Sequence[Number]
    closes: Sequence[Number]
    can_exit: Sequence[Any]
    days: Number


class Book(NamedTuple):
    """The positions of an account, each (A,), which a step changes in place.

    entries: average entry prices, 0 without a position. filled: quantities of the orders. exited, exit_prices: signed
    quantities closed within the bar, and their prices; called: those of them that a margin call closed. orders, exits:
    quantities attempted. fill_prices: of `filled`.
    """

    holdings: MutableSequence[Number]
    entries: MutableSequence[Number]
    orders: MutableSequence[Number]
    filled: MutableSequence[Number]
    exits: MutableSequence[Number]
    exited: MutableSequence[Number]
    exit_prices: MutableSequence[Number]
    called: MutableSequence[Number]
    fill_prices: MutableSequence[Number]


class WithinSteps(NamedTuple):
    """The steps of one asset within a bar, in this order, for one kind of number. `within_steps` defines them.

    These are the prices at which orders and exits are attempted, filled or not: the kernel, live accounts and
    reconciliation call them.
    """

    limit_order: Callable[..., tuple[Number, Number]]
    entry_price: Callable[..., Number]
    exit_order: Callable[..., tuple[Number, Number]]


def within_steps(ops: Ops, compiled: Compiled = lambda function: function) -> WithinSteps:
    """The steps for the kind of number that `ops` works on, each passed through `compiled`."""
    reached_exit = _reached_exit(ops, compiled)
    limit_order = _limit_order(ops, compiled, reached_exit)
    return WithinSteps(limit_order, _entry_price(ops, compiled), _exit_order(ops, compiled, reached_exit))


def stepping_within(
    ops: Ops, compiled: Compiled, size_orders: Callable[..., Number], fill_orders: Callable[..., Any]
) -> Any:
    """`step_within` for the kind of number that `ops` works on."""
    limit_order, entry_price, exit_order = within_steps(ops, compiled)
    steps = order_steps(ops, compiled)
    borrowing_fee, interest = steps.borrowing_fee, steps.interest
    closing_terms = compiled(_closing_terms)
    call_margin = _margin_call(ops, compiled, fill_orders, closing_terms)

    @compiled
    def step_within(  # noqa: PLR0917  # positional, in the hot path
        weights: Sequence[Number],
        may_trade: Sequence[Any],
        cash: Number,
        bar: Bar,
        book: Book,
        terms: Terms,
        overrides: Overrides | None = None,
    ) -> tuple[Number, Number, Number, Any]:
        """As `execution`'s step: (cash, costs paid in this bar, equity at the closes, margin_called)."""
        n_assets = len(book.holdings)
        limited = terms.limit >= 0.0
        at_decision = limited or terms.sized_at_decision > 0.0
        for i in range(n_assets):
            book.fill_prices[i] = bar.decided[i] if at_decision else bar.prices[i]
        equity = size_orders(weights, may_trade, cash, book.holdings, book.fill_prices, terms, book.orders)
        if at_decision and not limited:
            for i in range(n_assets):
                book.fill_prices[i] = bar.prices[i]
        if limited:
            for i in range(n_assets):
                book.orders[i], book.fill_prices[i] = limit_order(
                    book.orders[i], book.holdings[i], book.entries[i], bar.decided[i],
                    bar.opens[i], bar.lows[i], bar.highs[i], bar.can_exit[i], terms,
                )  # fmt: skip
        cash, costs = fill_orders(book.orders, cash, equity, book.fill_prices, bar.half_spreads, terms, book.filled)
        if overrides is not None:
            cash, costs = override_fills(overrides, cash, costs, book.fill_prices, bar.half_spreads, terms, book.filled)
        for i in range(n_assets):
            held = book.holdings[i] + book.filled[i]
            price = book.fill_prices[i]
            book.entries[i] = entry_price(book.entries[i], book.holdings[i], book.filled[i], held, price)
            book.holdings[i] = held
            book.exits[i], book.exit_prices[i] = exit_order(
                book.filled[i], price, held, book.entries[i],
                bar.opens[i], bar.lows[i], bar.highs[i], bar.closes[i], bar.can_exit[i], terms,
            )  # fmt: skip
        cash, paid = fill_orders(
            book.exits, cash, equity, book.exit_prices, bar.half_spreads, closing_terms(terms), book.exited
        )
        if overrides is not None:
            cash, paid = override_fills(
                overrides.exits, cash, paid, book.exit_prices, bar.half_spreads, terms, book.exited, book.holdings
            )
        costs = costs + paid
        for i in range(n_assets):
            book.holdings[i] = book.holdings[i] + book.exited[i]
        if terms.maintenance > 0.0:
            cash, paid = call_margin(cash, equity, bar, book, terms)
            costs = costs + paid
        worth = cash * 0.0
        fee = worth
        for i in range(n_assets):
            value = book.holdings[i] * bar.closes[i]
            worth = worth + value
            fee = fee + borrowing_fee(value, terms.borrow_rate)
        paid, margin_called = interest(cash, fee * bar.days, bar.days, terms)
        if overrides is not None:
            paid, margin_called = interest_with_debt(cash, fee * bar.days, terms, (paid, margin_called))
        return cash - paid, costs + paid, cash - paid + worth, margin_called

    return step_within


def _margin_call(ops: Ops, compiled: Compiled, fill_orders: Callable[..., Any], closing_terms: Any) -> Any:
    where = ops.where

    @compiled
    def call_margin(cash: Number, equity: Number, bar: Bar, book: Book, terms: Terms) -> tuple[Number, Number]:
        """Close all positions at the close if the account lacks margin; (cash afterwards, costs paid)."""
        worth = cash
        gross = cash * 0.0
        n_assets = len(book.holdings)
        for i in range(n_assets):
            value = book.holdings[i] * bar.closes[i]
            worth = worth + value
            gross = gross + abs(value)
        lacks_margin = worth < gross * terms.maintenance
        for i in range(n_assets):
            book.exits[i] = where(lacks_margin & bar.can_exit[i], -book.holdings[i], 0.0)
        cash, costs = fill_orders(
            book.exits, cash, equity, bar.closes, bar.half_spreads, closing_terms(terms), book.called
        )
        for i in range(n_assets):
            book.holdings[i] = book.holdings[i] + book.called[i]
            book.exited[i] = book.exited[i] + book.called[i]
            book.exit_prices[i] = where(book.called[i] != 0.0, bar.closes[i], book.exit_prices[i])
        return cash, costs

    return call_margin


def _closing_terms(terms: Terms) -> Terms:
    """The costs of `terms` without their limits. Machine code has no default arguments, so every field is given."""
    costs = (terms.buy_rate, terms.sell_rate, terms.fixed_fee, terms.borrow_rate)
    reserve = -math.inf if terms.maintenance > 0.0 else 0.0
    return Terms(*costs, -1.0, 1.0, 1.0, math.inf, reserve, 0.0, 0.0, 0.0, 0.0, 0.0, terms.maintenance, 0.0, -1.0, 0.0)


def _limit_order(ops: Ops, compiled: Compiled, reached_exit: Any) -> Any:
    where, least, greatest = ops.where, ops.least, ops.greatest

    @compiled
    def limit_order(  # noqa: PLR0917  # positional, in the hot path
        order: Number,
        held: Number,
        entry: Number,
        decided: Number,
        opened: Number,
        low: Number,
        high: Number,
        can_exit: Any,
        terms: Terms,
    ) -> tuple[Number, Number]:
        """(the order, or 0 if it lapses, the price at which it is attempted). held, entry: before the bar."""
        leaving, _ = reached_exit(held, entry, opened, low, high, can_exit, terms)
        buys = order > 0.0
        limit = where(buys, decided * (1.0 - terms.limit), decided * (1.0 + terms.limit))
        price = where(buys, least(opened, limit), greatest(opened, limit))
        through = where(buys, low < limit, high > limit) & ((price == opened) | (leaving == 0.0))
        return where(through, order, 0.0), where(through, price, opened)

    return limit_order


def _entry_price(ops: Ops, compiled: Compiled) -> Any:
    where = ops.where

    @compiled
    def entry_price(entry: Number, before: Number, filled: Number, held: Number, price: Number) -> Number:
        """The average entry price of a position that a fill changed from `before` to `held`; 0 without a position."""
        some = where(held != 0.0, held, 1.0)
        average = (entry * before + price * filled) / some
        entry = where(before * filled > 0.0, average, entry)  # a position that shrinks keeps its price
        entry = where((before * held <= 0.0) & (filled != 0.0), price, entry)
        return where(held != 0.0, entry, 0.0)

    return entry_price


def _exit_order(ops: Ops, compiled: Compiled, reached_exit: Any) -> Any:
    where = ops.where

    @compiled
    def exit_order(  # noqa: PLR0917  # positional, in the hot path
        filled: Number,
        price: Number,
        held: Number,
        entry: Number,
        opened: Number,
        low: Number,
        high: Number,
        close: Number,
        can_exit: Any,
        terms: Terms,
    ) -> tuple[Number, Number]:
        """(quantity of `held` that the stop or target closes, or 0, its price). filled, price: of the order.

        After a fill at a limit within the bar, only the close counts for the target, but the whole bar for the stop.
        """
        if terms.limit >= 0.0:
            within = (filled != 0.0) & (price != opened)
            is_short = held < 0.0
            low_after, high_after = where(is_short, close, low), where(is_short, high, close)
            opened = where(within, price, opened)
            low, high = where(within, low_after, low), where(within, high_after, high)
        return reached_exit(held, entry, opened, low, high, can_exit, terms)

    return exit_order


def _reached_exit(ops: Ops, compiled: Compiled) -> Any:
    where, least, greatest = ops.where, ops.least, ops.greatest

    @compiled
    def reached_exit(  # noqa: PLR0917  # positional, in the hot path
        held: Number, entry: Number, opened: Number, low: Number, high: Number, can_exit: Any, terms: Terms
    ) -> tuple[Number, Number]:
        """(quantity that closes the position, or 0 if the bar reaches neither stop nor target, its price)."""
        is_short = held < 0.0
        reached, price = is_short & (held > 0.0), opened
        if terms.take_profit > 0.0:
            target = where(is_short, entry * (1.0 - terms.take_profit), entry * (1.0 + terms.take_profit))
            reached = where(is_short, low <= target, high >= target)
            price = where(is_short, least(opened, target), greatest(opened, target))
        if terms.stop_loss > 0.0:
            stop = where(is_short, entry * (1.0 + terms.stop_loss), entry * (1.0 - terms.stop_loss))
            stopped = where(is_short, high >= stop, low <= stop)
            at_stop = where(is_short, greatest(opened, stop), least(opened, stop))
            price = where(stopped, at_stop, price)
            reached = reached | stopped
        reached = reached & can_exit & (held != 0.0)
        return where(reached, -held, 0.0), where(reached, price, 0.0)

    return reached_exit
