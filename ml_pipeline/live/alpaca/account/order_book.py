"""Orders as far as Alpaca has told of them, by its stream and by what is asked for."""

import threading
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np

from ml_pipeline.live.alpaca.account.order_progress import BrokerOrder, Execution, later, number, order_of
from ml_pipeline.live.alpaca.connection.rest_client import Refused, RestClient
from ml_pipeline.live.alpaca.connection.times import time_of

_MOST_ORDERS = 500
"""That one answer of Alpaca holds."""
_PAGE, _MOST_PAGES = 100, 50
_NOT_FOUND = 404
_EXECUTED = ("fill", "partial_fill")


class OrderBook:
    """Orders by client order id, and executions by Alpaca's order id; filled from any thread."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._orders: dict[str, BrokerOrder] = {}
        self._executions: dict[str, dict[Decimal, Execution]] = {}
        self._changed = threading.Condition()

    def get(self, client_order_id: str) -> BrokerOrder | None:
        with self._changed:
            return self._orders.get(client_order_id)

    def executions(self, order_id: str) -> dict[Decimal, Execution]:
        """What is known of an order's fills, by how much of it is filled after each."""
        with self._changed:
            return dict(self._executions.get(order_id, {}))

    def forget(self, client_order_id: str) -> None:
        with self._changed:
            if (order := self._orders.pop(client_order_id, None)) is not None:
                self._executions.pop(order.order_id, None)

    def note_update(self, data: Mapping[str, Any]) -> None:
        """A message of the stream; the same again, or an older one after a newer one, changes nothing."""
        order = order_of(data["order"])
        with self._changed:
            if data.get("event") in _EXECUTED and data.get("qty") is not None:
                execution = Execution(number(data["qty"]), number(data["price"]), time_of(data["timestamp"]))
                self._executions.setdefault(order.order_id, {})[order.filled] = execution
            self._note(order)

    def note_order(self, answer: Mapping[str, Any]) -> BrokerOrder:
        order = order_of(answer)
        with self._changed:
            self._note(order)
            return self._orders[order.client_order_id]

    def _note(self, order: BrokerOrder) -> None:
        self._orders[order.client_order_id] = later(self._orders.get(order.client_order_id), order)
        self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Until `holds`, or an update came, or the time is over; whether it holds."""
        with self._changed:
            if not holds():
                self._changed.wait(timeout_s)
            return holds()

    # What is asked for

    def ask(self, client_order_id: str) -> BrokerOrder | None:
        """The order of this id by Alpaca's server; None where it has none."""
        try:
            return self.note_order(self._rest.get("/orders:by_client_order_id", {"client_order_id": client_order_id}))
        except Refused as refused:
            if refused.status == _NOT_FOUND:
                return None
            raise

    def ask_open(self) -> list[BrokerOrder]:
        return self._list({"status": "open"})

    def ask_recent(self, after: np.datetime64 | None = None) -> list[BrokerOrder]:
        """The latest orders of the account, or those that were sent after a time; at most 500."""
        return self._list({"status": "all"} | ({} if after is None else {"after": f"{after}Z"}))

    def refresh(self, client_order_ids: Iterable[str]) -> None:
        """Ask for these orders, in one request where they are recent."""
        wanted = [*client_order_ids]
        if not wanted:
            return
        known = [self.get(each) for each in wanted]
        sent = [order.submitted for order in known if order is not None]
        listed = {order.client_order_id for order in self.ask_recent(_before(min(sent)))} if sent else set()
        for each in wanted:
            if each not in listed:
                self.ask(each)

    def ask_executions(self, orders: Iterable[BrokerOrder]) -> None:
        """The single fills of these orders by the account's activities, which may come some seconds after them."""
        ids = {order.order_id: order for order in orders}
        if not ids:
            return
        after = _before(min(order.submitted for order in ids.values()))
        parameters = {"after": f"{after}Z", "direction": "asc", "page_size": str(_PAGE)}
        for _ in range(_MOST_PAGES):
            page = self._rest.get("/account/activities/FILL", parameters)
            with self._changed:
                for each in page:
                    if each.get("order_id") in ids:
                        execution = Execution(
                            number(each["qty"]), number(each["price"]), time_of(each["transaction_time"])
                        )
                        self._executions.setdefault(each["order_id"], {})[number(each["cum_qty"])] = execution
            if len(page) < _PAGE:
                return
            parameters = parameters | {"page_token": str(page[-1]["id"])}

    def _list(self, parameters: Mapping[str, str]) -> list[BrokerOrder]:
        answer = self._rest.get(
            "/orders", {**parameters, "limit": str(_MOST_ORDERS), "direction": "desc", "nested": "false"}
        )
        return [self.note_order(each) for each in answer if each.get("symbol")]


def _before(time: np.datetime64) -> np.datetime64:
    """A whole second before a time, as Alpaca takes them."""
    return time.astype("datetime64[s]") - np.timedelta64(1, "s")


def path_of(order: BrokerOrder) -> str:
    return f"/orders/{quote(order.order_id, safe='')}"
