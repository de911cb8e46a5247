"""Why a session's orders ended differently from the backtest: one cause for each bar and symbol, from its records.

A row of the ledger follows one bar after the decision: orders decided at bar k are filled in row k + 1.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np

from ml_pipeline.live.brokers.broker import OrderUpdate
from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.orders import AssumedFills, OrderFills, Place, RecordedOrders
from ml_pipeline.live.reconciliation.recorded import RecordedSession, SentOrder
from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol

Cause = Literal[
    "corrected_bar",
    "adjusted",
    "missed_bar",
    "by_hand",
    "refused",
    "broker_away",
    "rejected",
    "lapsed",
    "sized_before_fill",
    "rounded",
    "partial_fill",
    "delay",
    "fill_price",
    "costs",
    "margin_call",
    "unexplained",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which they are switched on."""

MEANINGS: Mapping[Cause, str] = {
    "corrected_bar": "a bar was corrected after the decision; the backtest uses the corrected one",
    "adjusted": "the account changed without an order: a transfer, a split that was booked late or the like",
    "missed_bar": "no decision, because the bar was late or missing, or the session waited",
    "by_hand": "a user requested a stop or the closing of all positions",
    "refused": "a guard refused the order, or closed all positions",
    "broker_away": "the broker was unreachable, so the order was not sent",
    "rejected": "the broker rejected the order",
    "lapsed": "the order was canceled or expired unfilled",
    "sized_before_fill": "the order was sized at the close of the decision, the backtest's at the price of the fill",
    "rounded": "the broker takes only whole shares or other steps, so the quantity was rounded",
    "partial_fill": "only a part of the order was filled",
    "delay": "the order was filled later than the open, at another price, or in a later bar",
    "fill_price": "the order was filled at the open, at another price than assumed",
    "costs": "fees, interest or borrowing costs differ from those assumed",
    "margin_call": "the backtest closed all positions for lack of margin; the broker did not",
    "unexplained": "the records do not explain it",
}
LATE_AFTER_S = 5.0
"""Seconds after the open of its bar from which a fill counts as delayed."""
# Smaller relative differences of sums, of fills or of money, are due to rounding.
_ROUNDING = 1e-9


class Deviation(NamedTuple):
    """A deviation of one decision from the backtest. bar: of the session, at whose close it was decided. asset: None:
    all assets.

    evidence: from the records. value: the actual rate or money of costs, the quantity that
    came without an order, or else the price; NaN: as assumed.
    delay_s: from the open of the fill's bar to the fill. closes: all positions were closed. quantity: the signed
    quantity that was filled or ordered, if it differs from the backtest's; NaN: as the backtest sizes it.
    exit: of the position that a stop or target closes within the bar, not of the order. base: the quantity without this
    deviation, or the position that an adjustment found; NaN: unknown. in_proportion: see `AdjustedAccount`.
    """

    cause: Cause
    bar: int
    asset: int | None
    evidence: str = ""
    value: float = np.nan
    delay_s: float = np.nan
    closes: bool = False
    quantity: float = np.nan
    exit: bool = False
    base: float = np.nan
    in_proportion: bool = False

    @property
    def adjusts(self) -> bool:
        """Whether it changed the account itself, not the quantity of an order that shares the account."""
        return self.cause == "adjusted" and bool(np.isnan(self.quantity))

    def relative(self, quantity: float) -> tuple[float, float]:
        """(share, more): how this deviation changes a quantity, so that it also fits an account of another size.

        A part of `base` is the same part of any other quantity; what comes in addition is the same in number.
        """
        if np.isnan(self.base):
            return 0.0, quantity
        if self.base and (self.in_proportion or 0.0 <= quantity / self.base <= 1.0):
            return quantity / self.base, 0.0
        return 1.0, quantity - self.base


def deviations_of(record: RecordedSession, backtest: SessionBacktest, rows: Ledger) -> list[Deviation]:
    """All deviations in the records, in order of bars. rows: the session's ledger, one row per bar."""
    orders = RecordedOrders(record, backtest)
    found = [
        *_of_adjustments(record, orders, rows),
        *_of_events(record, orders),
        *_of_refusals(record, orders),
        *_of_orders(record, backtest, orders),
        *_of_fills(record, backtest, orders),
        *_of_charges(record, backtest, orders, rows),
    ]
    found = [each for each in found if each.bar < backtest.n_bars - 1]  # orders of the last bar are not filled yet
    return sorted(_most_telling(found), key=lambda each: (each.bar, each.asset or 0, CAUSES.index(each.cause)))


def _most_telling(found: Iterable[Deviation]) -> list[Deviation]:
    """Keep one reason for each unfilled order: for example, without a decision there is no order to refuse."""
    whole = {each.bar: each for each in found if each.cause == "missed_bar" or each.closes}
    kept, stopped = [], set[tuple[int, int | None]]()
    for each in found:
        if each.bar in whole and each is not whole[each.bar] and each.cause in NOT_FILLED:
            continue
        if each.cause in NOT_FILLED and not each.closes:
            if (each.bar, each.asset) in stopped or (each.bar, None) in stopped:
                continue
            stopped.add((each.bar, each.asset))
        kept.append(each)
    return kept


NOT_FILLED = {"missed_bar", "by_hand", "refused", "broker_away", "rejected", "lapsed"}
_OF_EVENTS: Mapping[str, Cause] = {
    "missed": "missed_bar",
    "late": "missed_bar",
    "broker_away": "broker_away",
    "gap": "missed_bar",
    "flatten": "by_hand",
}


def _of_adjustments(record: RecordedSession, orders: RecordedOrders, rows: Ledger) -> Iterable[Deviation]:
    held = per_symbol(rows, "position")
    for each in record.adjustments:
        row, asset = orders.bar(each.bar), orders.asset(each.symbol)
        if not row:  # the first row is the account at the start
            continue
        if each.cash:
            yield Deviation("adjusted", row - 1, None, each.what, -each.cash)
        if asset is not None and each.quantity:
            had, by = float(held[row - 1, asset]), each.in_proportion
            held[row - 1, asset] += each.quantity
            yield Deviation("adjusted", row - 1, asset, each.what, each.quantity, base=had, in_proportion=by)


def _of_events(record: RecordedSession, orders: RecordedOrders) -> Iterable[Deviation]:
    filled_at = {place.bar for place in orders.fills}
    for event in record.events:
        if (bar := orders.bar(event.bar)) is None:
            continue
        if event.kind in {"flatten", "gap"}:
            yield Deviation(_OF_EVENTS[event.kind], bar, None, event.sentence, closes=True)
        elif bar not in filled_at:
            yield Deviation(_OF_EVENTS[event.kind], bar, None, event.sentence)


def _of_refusals(record: RecordedSession, orders: RecordedOrders) -> Iterable[Deviation]:
    for refusal in record.refusals:
        if (bar := orders.bar(refusal.bar)) is None:
            continue
        evidence = refusal.sentence or refusal.guard
        if refusal.flattens:
            yield Deviation("refused", bar, None, evidence, closes=True)
        elif refusal.symbol is None:
            if not any(place.bar == bar for place in orders.fills):
                yield Deviation("refused", bar, None, evidence)
        elif (asset := orders.asset(refusal.symbol)) is not None and Place(bar, asset) not in orders.fills:
            yield Deviation("refused", bar, asset, evidence)


def _of_orders(record: RecordedSession, backtest: SessionBacktest, orders: RecordedOrders) -> Iterable[Deviation]:
    """Orders that were unfilled, filled only partly, or filled after their bar."""
    prices = limit_prices(record, orders)
    for place, order in orders.orders.items():
        update, in_time = orders.updates.get(order.client_order_id), orders.in_time.get(place)
        status, reason = ("", "") if update is None else (update.status, update.reason)
        if place not in orders.fills:
            if status == "rejected":
                yield Deviation("rejected", *place, reason or "rejected")
            elif status in {"canceled", "expired"}:
                yield Deviation("lapsed", *place, reason or status)
            continue
        if in_time is None:
            yield Deviation("delay", *place, "filled after its bar", quantity=0.0)
            continue
        if not record.sizes_at_fill and not record.models[0].rules.sizes_at_decision and not order.closing:
            yield Deviation("sized_before_fill", *place, f"sized to {order.quantity:g}")
        ordered = _quantity_of(order, update)
        rest_ended = status in {"canceled", "expired"}  # the only sign of a partial fill if the broker sizes orders
        is_part = status != "filled" and ordered and in_time.quantity / ordered < 1 - _ROUNDING
        is_other = _splits(record, backtest, place)
        is_fee = not record.sizes_at_fill and _is_paid_in_kind(ordered, in_time)
        if place in orders.waited or rest_ended or is_part or is_other or is_fee:
            evidence = f"{in_time.quantity:g} of about {ordered:g}"
            evidence += ", since the fee was taken from what was bought" if is_fee else ""
            price = prices.get(place, np.nan)
            yield Deviation("partial_fill", *place, evidence, price, quantity=in_time.quantity)


def _splits(record: RecordedSession, backtest: SessionBacktest, place: Place) -> bool:
    """Whether the symbol split between the decision and the fill, so that the order was for another part of shares."""
    if record.units is None or record.sizes_at_fill:
        return False
    decided, filled = record.units[backtest.first + place.bar : backtest.first + place.bar + 2, place.asset]
    return bool(decided != filled)


def _is_paid_in_kind(ordered: float, fills: OrderFills) -> bool:
    """Whether all that a purchase lacks are its costs: the broker took its fee from what was bought."""
    missing = (ordered - fills.quantity) * fills.price
    return missing > 0.0 < ordered and abs(missing - fills.costs) <= _ROUNDING * ordered * fills.price


def limit_prices(record: RecordedSession, orders: RecordedOrders) -> dict[Place, float]:
    """The prices of fills that the backtest may take for unfilled: those of limit orders."""
    if record.rules.limit_bps is None:
        return {}
    return {place: fills.price for place, fills in orders.booked.items() if fills.quantity}


def _quantity_of(order: SentOrder, update: OrderUpdate | None) -> float:
    """The signed quantity of an order, from the broker if it sized the order."""
    if update is not None and update.quantity:
        quantity, sign = float(update.quantity), np.sign(order.quantity) or 1.0
        return float(quantity if quantity < 0 or order.quantity == 0 else sign * abs(quantity))
    return order.quantity


def _of_fills(record: RecordedSession, backtest: SessionBacktest, orders: RecordedOrders) -> Iterable[Deviation]:
    """Fills in another bar, at another price or with other costs than assumed."""
    assumed = AssumedFills(record, backtest)
    for place, fills in orders.booked.items():
        if place.bar >= backtest.n_bars - 1:
            continue
        order = orders.orders.get(place)
        price = assumed.price(*place, fills.quantity, closing=order is not None and order.closing)
        delay_s = assumed.delay_s(place.bar, fills.time)
        is_other = abs(fills.price - price) > _ROUNDING * price
        evidence = f"filled at {fills.price:.10g}, assumed {price:.10g}"
        if place in orders.late:
            evidence = f"an earlier order was filled with {fills.quantity:g} at {fills.price:.10g}"
            yield Deviation("delay", *place, evidence, fills.price, delay_s, quantity=fills.quantity)
        elif is_other and delay_s > LATE_AFTER_S:
            yield Deviation("delay", *place, f"{evidence}, {delay_s:,.1f} s after the open", fills.price, delay_s)
        elif is_other:
            yield Deviation("fill_price", *place, evidence, fills.price, delay_s)
        traded = abs(fills.quantity) * fills.price
        costs = assumed.costs(*place, fills.quantity, fills.price) if traded else 0.0
        if abs(fills.costs - costs) > _ROUNDING * traded:
            evidence = f"costs {fills.costs:.6g}, assumed {costs:.6g}"
            if traded:
                yield Deviation("costs", *place, evidence, fills.costs / traded)
            else:
                yield Deviation("costs", place.bar, None, evidence, fills.costs)


def _of_charges(
    record: RecordedSession, backtest: SessionBacktest, orders: RecordedOrders, rows: Ledger
) -> Iterable[Deviation]:
    """Interest and borrowing fees that differ from the terms, by the rows in which they were paid."""
    paid = np.zeros(backtest.n_bars)
    for charge in record.charges:
        if (row := orders.bar(charge.bar)) is not None:
            paid[row] += charge.amount
    moved = record.flows_at(rows["time"]) + record.adjusted_cash_at(rows["time"])
    due = AssumedFills(record, backtest).interest(rows, rows["cash"] + paid - moved)
    for row in np.flatnonzero(np.abs(paid - due) > _ROUNDING * np.abs(rows["equity"])).tolist():
        if row == 0:
            continue
        yield Deviation(
            "costs", row - 1, None, f"charged {paid[row]:.6g}, assumed {due[row]:.6g}", paid[row] - due[row]
        )
