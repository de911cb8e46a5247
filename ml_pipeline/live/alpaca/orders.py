"""Orders at Alpaca: their fills, each reported once, and their relation to the session's orders.

Alpaca reports a fill up to three times: on its stream, in the account's activities and in the order itself. Each report
has the filled sum of the order after the fill. An order reaches each sum once, so the sum identifies a fill. What one
source lacks, the next one completes.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from ml_pipeline.live.alpaca.client import Refused, RestClient, read_list, read_number, read_text, reading, time_of
from ml_pipeline.live.brokers.broker import Fill, OrderStatus, OrderUpdate, UnreadableAnswer

_ENDS: dict[str, OrderStatus] = {
    "filled": "filled",
    "canceled": "canceled",
    "replaced": "canceled",
    "expired": "expired",
    "rejected": "rejected",
}
_SIGNS = {"buy": 1, "sell": -1}
_STILL_OPEN = (
    *("new", "accepted", "pending_new", "accepted_for_bidding", "held", "partially_filled", "calculated"),
    *("stopped", "suspended", "done_for_day", "pending_cancel", "pending_replace", "pending_review"),
)
_MOST_ORDERS = 500
"""Largest number in one answer of Alpaca."""
_PAGE, _MOST_PAGES = 100, 50
_NOT_FOUND = 404
_EXECUTED = ("fill", "partial_fill")
FIRST_LEG = ".0"
"""Suffix of the first of two orders: an order through zero is split, and the first one closes the position."""
EXIT = ".x"
"""Suffix of orders that protect a position. Alpaca names the legs of a group itself: its first order tells them."""
_GROUPS = ("bracket", "oco", "oto")
_UNKNOWN_FOR_S = 60.0
"""If an order whose answer was lost is still unknown after this time, it was never accepted."""
_KEPT = 2_000
"""Number of ended orders that are kept in memory for later requests."""


class Execution(NamedTuple):
    """One fill. quantity: unsigned. time: UTC."""

    quantity: Decimal
    price: Decimal
    time: np.datetime64


@dataclass(frozen=True)
class BrokerOrder:
    """An order at Alpaca. quantity, filled: unsigned. updated: UTC, its last change."""

    order_id: str
    client_order_id: str
    symbol: str
    sign: int
    quantity: Decimal
    filled: Decimal
    average_price: Decimal
    status: OrderStatus
    submitted: np.datetime64
    updated: np.datetime64

    @property
    def ended(self) -> bool:
        return self.status in _ENDS.values()


@dataclass
class Reported:
    """The part of an order that was reported to the caller. value: sum of quantity * price."""

    filled: Decimal = Decimal(0)
    value: Decimal = Decimal(0)


def order_of(answer: Mapping[str, Any]) -> BrokerOrder:
    """Parse an order from Alpaca's server or stream. Raises UnreadableAnswer."""
    with reading("order", answer):
        filled, status, side = read_number(answer, "filled_qty"), answer["status"], answer["side"]
        if status not in _ENDS and status not in _STILL_OPEN:
            raise ValueError(f'its status "{status}" is unknown')
        if side not in _SIGNS:
            raise ValueError(f'its side "{side}" is unknown')
        quantity = Decimal(0) if answer.get("notional") is not None else read_number(answer, "qty")  # others' orders
        average = read_number(answer, "filled_avg_price") if filled else Decimal(0)
        if min(filled, quantity, average) < 0:
            raise ValueError("its qty, filled_qty or filled_avg_price is negative")
        times = [answer.get(name) for name in ("updated_at", "filled_at", "canceled_at", "expired_at", "submitted_at")]
        created = read_text(answer, "created_at")
        return BrokerOrder(
            order_id=read_text(answer, "id"),
            client_order_id=read_text(answer, "client_order_id"),
            symbol=read_text(answer, "symbol"),
            sign=_SIGNS[side],
            quantity=quantity,
            filled=filled,
            average_price=average,
            status=_ENDS.get(status, "partly_filled" if filled else "accepted"),
            submitted=time_of(answer.get("submitted_at") or created),
            updated=time_of(next((each for each in times if each), created)),
        )


def later(first: BrokerOrder | None, second: BrokerOrder) -> BrokerOrder:
    """The newer of two states of one order, regardless of the order in which they arrived."""
    if first is None or (second.ended, second.filled) > (first.ended, first.filled):
        return second
    return first


def fills_of(
    order: BrokerOrder, told: Reported, executions: Mapping[Decimal, Execution], *, named: str
) -> tuple[list[Fill], bool]:
    """The unreported fills, and whether a gap before `order.filled` remains; advances `told`.

    executions: by filled sum after each. named: the caller's ID of the order.
    """
    fills = []
    for reached in sorted(executions):
        execution = executions[reached]
        if reached - execution.quantity == told.filled:
            fills.append(_fill(order, told, reached, execution, named))
    return fills, told.filled < order.filled


def fill_of_rest(order: BrokerOrder, told: Reported, *, named: str) -> Fill:
    """All unreported fills as one, at the price that follows from the order's average."""
    quantity = order.filled - told.filled
    price = (order.filled * order.average_price - told.value) / quantity
    return _fill(order, told, order.filled, Execution(quantity, price, order.updated), named)


def _fill(order: BrokerOrder, told: Reported, reached: Decimal, execution: Execution, named: str) -> Fill:
    told.filled = reached
    told.value += execution.quantity * execution.price
    return Fill(
        fill_id=f"{order.order_id}/{reached.normalize():f}",
        client_order_id=named,
        symbol=order.symbol,
        quantity=order.sign * execution.quantity,
        price=float(execution.price),
        costs=0.0,
        time=execution.time,
    )


class OrderBook:
    """Orders by client order ID, and executions by Alpaca's order ID; any thread may update it."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._orders: dict[str, BrokerOrder] = {}
        self._executions: dict[str, dict[Decimal, Execution]] = {}
        self._legs: dict[str, list[str]] = {}  # of a group, by its first order
        self._changed = threading.Condition()

    def get(self, client_order_id: str) -> BrokerOrder | None:
        with self._changed:
            return self._orders.get(client_order_id)

    def executions(self, order_id: str) -> dict[Decimal, Execution]:
        """The known fills of an order, by filled sum after each."""
        with self._changed:
            return dict(self._executions.get(order_id, {}))

    def legs_of(self, client_order_id: str) -> list[str]:
        """The IDs of the orders that Alpaca made of this one: the stop and the target of a group."""
        with self._changed:
            return list(self._legs.get(client_order_id, ()))

    def forget(self, client_order_id: str) -> None:
        with self._changed:
            self._legs.pop(client_order_id, None)
            if (order := self._orders.pop(client_order_id, None)) is not None:
                self._executions.pop(order.order_id, None)

    def note_update(self, data: Mapping[str, Any]) -> None:
        """Add a message of the stream; a repeated or older one changes nothing."""
        with suppress(UnreadableAnswer), reading("update"):  # what it is about is also requested
            order, execution = order_of(data["order"]), None
            if data.get("event") in _EXECUTED and data.get("qty") is not None:
                execution = _execution_of(data, data["timestamp"])
            with self._changed:
                if execution is not None:
                    self._executions.setdefault(order.order_id, {})[order.filled] = execution
                self._note(order)

    def note_order(self, answer: Mapping[str, Any]) -> BrokerOrder:
        order = order_of(answer)
        with reading("order", answer):
            legs = [order_of(leg) for leg in read_list(answer.get("legs") or [])]
        with self._changed:
            if legs:
                self._legs[order.client_order_id] = [leg.client_order_id for leg in legs]
            for each in (order, *legs):
                self._note(each)
            return self._orders[order.client_order_id]

    def _note(self, order: BrokerOrder) -> None:
        self._orders[order.client_order_id] = later(self._orders.get(order.client_order_id), order)
        self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds`, an update, or the timeout. Returns whether `holds`."""
        with self._changed:
            if not holds():
                self._changed.wait(timeout_s)
            return holds()

    # Requests

    def ask(self, client_order_id: str) -> BrokerOrder | None:
        """Request the order with this ID; None if Alpaca has none."""
        try:
            answer = self._rest.get("/orders:by_client_order_id", {"client_order_id": client_order_id})
        except Refused as refused:
            if refused.status == _NOT_FOUND:
                return None
            raise
        return self.note_group(answer)

    def note_group(self, answer: Mapping[str, Any]) -> BrokerOrder:
        """Add an order. If it is the first one of a group, whose legs the answer lacks, request them."""
        order, known = self.note_order(answer), [leg for legs in self._legs.values() for leg in legs]
        is_first = answer.get("order_class") in _GROUPS and order.client_order_id not in known
        if is_first and not self.legs_of(order.client_order_id):
            return self.note_order(self._rest.get(path_of(order), {"nested": "true"}))
        return order

    def ask_open(self) -> list[BrokerOrder]:
        return self._list({"status": "open"})

    def ask_open_legs(self) -> list[str]:
        """Request the open orders. Returns their IDs, with those of the open legs of groups."""
        first = self.ask_open()
        legs = [self._orders[leg] for order in first for leg in self.legs_of(order.client_order_id)]
        return [order.client_order_id for order in (*first, *legs) if not order.ended]

    def ask_recent(self, after: np.datetime64 | None = None) -> list[BrokerOrder]:
        """Request the latest orders of the account, or those sent after a time; at most 500."""
        return self._list({"status": "all"} | ({} if after is None else {"after": f"{after}Z"}))

    def refresh(self, client_order_ids: Iterable[str]) -> None:
        """Request these orders, in one request if they are recent."""
        wanted = [*client_order_ids]
        if not wanted:
            return
        known = [self.get(each) for each in wanted]
        sent = [order.submitted for order in known if order is not None]
        listed = {order.client_order_id for order in self.ask_recent(_before(min(sent)))} if sent else set()
        listed |= {leg for each in listed for leg in self.legs_of(each)}
        for each in wanted:
            if each not in listed:
                self.ask(each)

    def ask_executions(self, orders: Iterable[BrokerOrder]) -> None:
        """Request the single fills of these orders from the account's activities, which may lag by some seconds."""
        ids = {order.order_id: order for order in orders}
        if not ids:
            return
        after = _before(min(order.submitted for order in ids.values()))
        parameters = {"after": f"{after}Z", "direction": "asc", "page_size": str(_PAGE)}
        for _ in range(_MOST_PAGES):
            with reading("list of fills"):
                page = read_list(self._rest.get("/account/activities/FILL", parameters))
            for each in page:
                with reading("fill", each):
                    if read_text(each, "order_id") not in ids:
                        continue
                    reached, execution = read_number(each, "cum_qty"), _execution_of(each, each["transaction_time"])
                with self._changed:
                    self._executions.setdefault(each["order_id"], {})[reached] = execution
            if len(page) < _PAGE:
                return
            with reading("fill", page[-1]):
                parameters = parameters | {"page_token": read_text(page[-1], "id")}

    def _list(self, parameters: Mapping[str, str]) -> list[BrokerOrder]:
        answer = self._rest.get(
            "/orders", {**parameters, "limit": str(_MOST_ORDERS), "direction": "desc", "nested": "true"}
        )
        with reading("list of orders"):
            # An order of several options has no symbol.
            found = [each for each in read_list(answer) if each.get("symbol") or each.get("order_class") != "mleg"]
        return [self.note_order(each) for each in found]


def _execution_of(answer: Mapping[str, Any], at: str) -> Execution:
    """A fill in an answer. Raises ValueError."""
    quantity, price = read_number(answer, "qty"), read_number(answer, "price")
    if quantity <= 0 or price < 0:
        raise ValueError(f"its qty is {quantity} and its price {price}")
    return Execution(quantity, price, time_of(at))


def path_of(order: BrokerOrder) -> str:
    return f"/orders/{quote(order.order_id, safe='')}"


@dataclass
class Tracked:
    """An order of the session. number: counts the orders of this process.

    legs: IDs of its orders at Alpaca. rest: quantity to send after the first of two is filled. quantity: total that was
    sent; None if an earlier process sent it. note: how it differs from the session's order.
    stop_price, target_price: of the position that it opens. An ID that ends with `EXIT` stands for what protects the
    position of that order: legs of its group, or orders of their own.
    """

    client_order_id: str
    symbol: str
    number: int
    legs: list[str] = field(default_factory=list)
    quantity: Decimal | None = None
    rest: Decimal = Decimal(0)
    limit_price: float | None = None
    stop_price: float | None = None
    target_price: float | None = None
    note: str = ""
    tried_at: float = field(default_factory=time.monotonic)

    @property
    def is_exit(self) -> bool:
        return self.client_order_id.endswith(EXIT)


class TrackedOrders:
    """Every order that was sent or looked up, by the session's ID.

    Iterating yields those that may have news, so its cost does not grow with the age of a session.
    """

    def __init__(self, book: OrderBook) -> None:
        self._book = book
        self._tracked: dict[str, Tracked] = {}
        self._ended: dict[str, Tracked] = {}  # those whose end was reported, oldest first; not in `_tracked`
        self._ended_number = 0  # the largest number of them
        self._exits: dict[str, Tracked] = {}  # those of them that protect positions: few, and searched for each order
        self.number = 0
        """Number of orders so far."""

    def __iter__(self) -> Iterator[Tracked]:
        return iter([*self._tracked.values()])

    def get(self, name: str) -> Tracked | None:
        return self._tracked.get(name) or self._ended.get(name)

    def track(self, name: str, *, symbol: str = "", legs: Sequence[str] = ()) -> Tracked:
        """Track the order with this ID, and these orders at Alpaca for it."""
        tracked = self._tracked[name] = self.get(name) or Tracked(name, symbol, 0)
        self._ended.pop(name, None)
        if tracked.is_exit:
            self._exits[name] = tracked
        if not tracked.number or self.never_came(tracked):
            self.number += 1
            tracked.number, tracked.tried_at = self.number, time.monotonic()
        tracked.symbol = tracked.symbol or symbol
        tracked.legs += [leg for leg in legs if leg not in tracked.legs]
        return tracked

    def track_found(self, name: str) -> Tracked:
        """Track the order with this ID, with all of its orders in the book."""
        return self.track(name, legs=self.legs(name))

    def symbol(self, name: str) -> str:
        """The symbol of a tracked order; empty if it is unknown."""
        tracked = self.get(name)
        if tracked is None or tracked.symbol:
            return "" if tracked is None else tracked.symbol
        return next((order.symbol for order in self.found(tracked)), "")

    def track_groups(self) -> None:
        """Track the legs of every known group, which protect the position of its first order."""
        for tracked in self:
            name = tracked.client_order_id
            if tracked.is_exit:
                tracked.legs += [leg for leg in self.legs(name) if leg not in tracked.legs]
            elif legs := self._book.legs_of(name):
                self.track(name + EXIT, symbol=tracked.symbol, legs=legs)

    def owner(self, leg: str) -> str:
        """The ID of the tracked order that this order at Alpaca belongs to; of another source, its own."""
        return next((name for name, tracked in self._exits.items() if leg in tracked.legs), name_of(leg))

    def untrack(self, name: str) -> None:
        for orders in (self._tracked, self._ended, self._exits):
            orders.pop(name, None)

    def legs(self, name: str) -> list[str]:
        """The known IDs of its orders at Alpaca."""
        found = [leg for leg in (name + FIRST_LEG, name) if self._book.get(leg) is not None]
        if name.endswith(EXIT):
            found += [*self._book.legs_of(name), *self._book.legs_of(told_name(name))]
        return found

    def found(self, tracked: Tracked) -> list[BrokerOrder]:
        """The known orders at Alpaca for it."""
        return [order for order in map(self._book.get, tracked.legs) if order is not None]

    def update(self, tracked: Tracked) -> OrderUpdate:
        """The combined state of its parts; at least one must be known."""
        orders = self.found(tracked)
        if tracked.is_exit:
            return self._exit_update(tracked, orders)
        filled = sum((order.sign * order.filled for order in orders), Decimal(0))
        quantity = tracked.quantity
        if quantity is None:
            quantity = sum((order.sign * order.quantity for order in orders), Decimal(0))
        status: OrderStatus = "partly_filled" if filled else "accepted"
        if self.has_ended(tracked):
            status = next((order.status for order in orders if order.status != "filled"), "filled")
            if status == "filled" and abs(filled) < abs(quantity):
                status = "canceled"  # its second part was not accepted
        last = max(orders, key=lambda order: order.updated)
        return OrderUpdate(tracked.client_order_id, last.symbol, status, quantity, filled, last.updated, tracked.note)

    def _exit_update(self, tracked: Tracked, orders: Sequence[BrokerOrder]) -> OrderUpdate:
        """The combined state of a stop and a target, of which one cancels the other."""
        filled = sum((order.sign * order.filled for order in orders), Decimal(0))
        status: OrderStatus = "partly_filled" if filled else "accepted"
        if self.has_ended(tracked):
            status = "filled" if any(order.status == "filled" for order in orders) else orders[-1].status
        last = max(orders, key=lambda order: order.updated)
        quantity = last.sign * max(order.quantity for order in orders)
        named = told_name(tracked.client_order_id)
        return OrderUpdate(named, last.symbol, status, quantity, filled, last.updated, tracked.note)

    def has_ended(self, tracked: Tracked) -> bool:
        """Whether its state is final."""
        if self.is_half_sent(tracked) and time.monotonic() < tracked.tried_at + _UNKNOWN_FOR_S:
            return False  # the session may still send its second part
        return bool(tracked.legs) and not tracked.rest and all(self.leg_has_ended(leg) for leg in tracked.legs)

    def is_half_sent(self, tracked: Tracked) -> bool:
        """Whether an earlier process sent only the first of two parts, and it is filled."""
        orders = self.found(tracked)
        is_first = [order.client_order_id for order in orders] == [tracked.client_order_id + FIRST_LEG]
        return is_first and orders[0].status == "filled" and not tracked.rest and tracked.quantity is None

    def leg_has_ended(self, leg: str) -> bool:
        order = self._book.get(leg)
        return order is not None and order.ended

    def never_came(self, tracked: Tracked) -> bool:
        """Whether an order whose answer was lost is still unknown after a long time."""
        return not self.found(tracked) and time.monotonic() > tracked.tried_at + _UNKNOWN_FOR_S

    def set_aside(self, tracked: Tracked) -> None:
        """Note that its end was reported. The oldest of these orders are forgotten."""
        name = tracked.client_order_id
        self._ended[name] = self._tracked.pop(name)
        self._ended_number = max(self._ended_number, tracked.number)
        while len(self._ended) > _KEPT:
            oldest = next(iter(self._ended.values()))
            self.untrack(oldest.client_order_id)
            for leg in oldest.legs:
                self._book.forget(leg)

    def take_back(self, after: int) -> None:
        """Yield all orders again if the caller repeats a time before the end of one: only orders up to this number had
        been reported."""
        if after < self._ended_number:
            self._tracked = {**self._ended, **self._tracked}
            self._ended, self._ended_number = {}, 0


def name_of(leg: str) -> str:
    """The ID under which an order at Alpaca is tracked."""
    return leg.removesuffix(FIRST_LEG)


def told_name(name: str) -> str:
    """The session's ID of a tracked order."""
    return name.removesuffix(EXIT)


def _before(time: np.datetime64) -> np.datetime64:
    """The whole second before a time, in Alpaca's resolution."""
    return time.astype("datetime64[s]") - np.timedelta64(1, "s")
