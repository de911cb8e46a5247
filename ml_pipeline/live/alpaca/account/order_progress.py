"""What became of an order at Alpaca, as fills that are each told once.

Alpaca tells a fill up to three times: on its stream, in the account's activities and in the order itself. All say how
much of the order is filled after it, and that sum names a fill: an order reaches each sum once. Whatever one source
does not have, the next one fills in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.alpaca.connection.times import time_of
from ml_pipeline.live.brokers.broker import Fill, OrderStatus

_ENDS: dict[str, OrderStatus] = {
    "filled": "filled",
    "canceled": "canceled",
    "replaced": "canceled",
    "expired": "expired",
    "rejected": "rejected",
}


class Execution(NamedTuple):
    """One fill. quantity: without sign. time: UTC."""

    quantity: Decimal
    price: Decimal
    time: np.datetime64


@dataclass(frozen=True)
class BrokerOrder:
    """An order as Alpaca has it. quantity, filled: without sign. updated: UTC, when it changed last."""

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
class Told:
    """How much of an order the caller knows. value: quantity * price, added up."""

    filled: Decimal = Decimal(0)
    value: Decimal = Decimal(0)


def order_of(answer: Mapping[str, Any]) -> BrokerOrder:
    """An order as Alpaca's server and its stream write it."""
    filled = number(answer.get("filled_qty"))
    status = _ENDS.get(str(answer["status"]), "partly_filled" if filled else "accepted")
    times = [answer.get(name) for name in ("updated_at", "filled_at", "canceled_at", "expired_at", "submitted_at")]
    return BrokerOrder(
        order_id=str(answer["id"]),
        client_order_id=str(answer["client_order_id"]),
        symbol=str(answer["symbol"]),
        sign=1 if answer["side"] == "buy" else -1,
        quantity=number(answer.get("qty")),
        filled=filled,
        average_price=number(answer.get("filled_avg_price")),
        status=status,
        submitted=time_of(next(each for each in (answer.get("submitted_at"), answer["created_at"]) if each)),
        updated=time_of(next(each for each in [*times, answer["created_at"]] if each)),
    )


def later(first: BrokerOrder | None, second: BrokerOrder) -> BrokerOrder:
    """The newer of two states of one order, in whatever order they came."""
    if first is None or (second.ended, second.filled) > (first.ended, first.filled):
        return second
    return first


def fills_of(
    order: BrokerOrder, told: Told, executions: Mapping[Decimal, Execution], *, named: str
) -> tuple[list[Fill], bool]:
    """The fills that the caller does not know, and whether a gap before `order.filled` is left; advances `told`.

    executions: by how much of the order is filled after each. named: the id that the caller knows the order by.
    """
    fills = []
    for reached in sorted(executions):
        execution = executions[reached]
        if reached - execution.quantity == told.filled:
            fills.append(_fill(order, told, reached, execution, named))
    return fills, told.filled < order.filled


def fill_of_rest(order: BrokerOrder, told: Told, *, named: str) -> Fill:
    """All that is filled besides what the caller knows, at the price that follows from the order's average."""
    quantity = order.filled - told.filled
    price = (order.filled * order.average_price - told.value) / quantity
    return _fill(order, told, order.filled, Execution(quantity, price, order.updated), named)


def _fill(order: BrokerOrder, told: Told, reached: Decimal, execution: Execution, named: str) -> Fill:
    told.filled = reached
    told.value += execution.quantity * execution.price
    return Fill(
        fill_id=f"{order.order_id}/{reached.normalize():f}",
        client_order_id=named,
        symbol=order.symbol,
        quantity=order.sign * float(execution.quantity),
        price=float(execution.price),
        costs=0.0,
        time=execution.time,
    )


def number(value: object) -> Decimal:
    """A quantity or price, which Alpaca writes as a text; 0 where there is none."""
    return Decimal(0) if value is None else Decimal(str(value))
