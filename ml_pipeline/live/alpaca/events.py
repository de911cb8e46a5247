"""Events of orders at Alpaca since the last call, and the cursor of all events of an account.

The stream of order updates only makes events arrive sooner: the broker requests whatever the stream misses.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.entry import OrderEntry
from ml_pipeline.live.alpaca.keys import Keys
from ml_pipeline.live.alpaca.library import StreamThread, alpaca_module, listening_stream, websocket_parameters
from ml_pipeline.live.alpaca.orders import (
    OrderBook,
    Reported,
    Tracked,
    TrackedOrders,
    fill_of_rest,
    fills_of,
    name_of,
    told_name,
)
from ml_pipeline.live.brokers.broker import BrokerEvent

_VERSION = 1
_ASK_FOR_ORDERS_EVERY_S = 0.2
_ASK_FOR_EXITS_EVERY_S = 2.0
"""Stops and targets are open for weeks, and the stream reports their fills."""
_CLOCKS_DIFFER = np.timedelta64(5, "s")
"""Largest difference between Alpaca's clock and that of order times."""


@dataclass
class ReportedOrder:
    """An order of the session that has not ended. legs: by ID at Alpaca."""

    legs: dict[str, Reported] = field(default_factory=dict)
    status: str = ""
    filled: Decimal = Decimal(0)


@dataclass
class EventCursor:
    """requests: open orders by client order ID. charges: IDs of the latest reported activities; None: none requested
    yet. asked_on: the day of their latest request; None: an older program wrote it. charges_only: an even older one
    did, which reported no other activities.
    held: positions in crypto to which the reported fills add up; None: unknown.
    run, number: all other orders up to the `number`-th of the process `run` have ended and were reported. after: UTC;
    orders that the account received later were sent by `run` but not reported.
    """

    run: str = ""
    number: int = 0
    after: np.datetime64 | None = None
    requests: dict[str, ReportedOrder] = field(default_factory=dict)
    charges: list[str] | None = None
    held: dict[str, Decimal] | None = None
    charges_only: bool = False
    asked_on: np.datetime64 | None = None

    def dump(self) -> str:
        """The cursor as text; equal states have equal texts."""
        requests = {
            name: {
                "legs": {leg: [str(told.filled), str(told.value)] for leg, told in request.legs.items()},
                "status": request.status,
                "filled": str(request.filled),
            }
            for name, request in self.requests.items()
        }
        content = {
            "version": _VERSION,
            "run": self.run,
            "number": self.number,
            "after": None if self.after is None else str(self.after),
            "requests": requests,
            "charges": self.charges,
            "charges_only": self.charges_only,
            **({} if self.asked_on is None else {"asked_on": str(self.asked_on)}),
            **({"held": {symbol: str(quantity) for symbol, quantity in self.held.items()}} if self.held else {}),
        }
        return json.dumps(content, separators=(",", ":"))


def read_cursor(text: str | None) -> EventCursor:
    """Parse the text of `dump`. Raises UserError for anything else, such as another broker's cursor."""
    if text is None:
        return EventCursor()
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError
        requests = {
            name: ReportedOrder(
                {leg: Reported(Decimal(filled), Decimal(value)) for leg, (filled, value) in each["legs"].items()},
                each["status"],
                Decimal(each["filled"]),
            )
            for name, each in content["requests"].items()
        }
        after = None if content["after"] is None else np.datetime64(content["after"], "ns")
        held = {symbol: Decimal(quantity) for symbol, quantity in content.get("held", {}).items()}
        charges, charges_only = content["charges"], content.get("charges_only", True)
        asked_on = np.datetime64(content["asked_on"], "D") if "asked_on" in content else None
        return EventCursor(
            content["run"], int(content["number"]), after, requests, charges, held, charges_only, asked_on
        )
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError):
        raise UserError(
            "The position in Alpaca's events that the session saved cannot be read, so it began with another broker; "
            "continue with that broker."
        ) from None


class UpdateStream:
    """Calls `on_update` with the data of each update, in the thread of the stream.

    timeout_s: the longest time for connecting and logging in.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        live: bool,
        url: str | None,
        timeout_s: float,
        on_update: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._listening_since: float | None = None
        self._changed = threading.Condition()
        stream = _make_stream(
            keys, live=live, url=url, timeout_s=timeout_s, on_listening=self._set_listening, on_update=on_update
        )
        self._thread = StreamThread(stream, name="alpaca updates")

    @property
    def listening_since(self) -> float | None:
        """Since when no update was missed, by `time.monotonic`; None while disconnected."""
        return self._listening_since

    def wait_until_listening(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._listening_since is not None, timeout_s)

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._thread.close()

    def _set_listening(self, listening: bool) -> None:
        with self._changed:
            self._listening_since = time.monotonic() if listening else None
            self._changed.notify_all()


def _make_stream(
    keys: Keys,
    *,
    live: bool,
    url: str | None,
    timeout_s: float,
    on_listening: Callable[[bool], None],
    on_update: Callable[[Mapping[str, Any]], None],
) -> Any:
    async def handle(message: Mapping[str, Any]) -> None:
        on_update(message["data"])

    base = alpaca_module("trading.stream").TradingStream
    stream = listening_stream(base, timeout_s, on_listening)(
        keys.key_id,
        keys.secret_key,
        paper=not live,
        raw_data=True,
        url_override=url,
        websocket_params=websocket_parameters(timeout_s),
    )
    stream.subscribe_trade_updates(handle)
    return stream


class OrderEvents:
    """Events of orders: the stream reports them at once, and open orders are also polled in case it is silent."""

    def __init__(
        self,
        book: OrderBook,
        tracked: TrackedOrders,
        entry: OrderEntry,
        stream: UpdateStream,
        now: Callable[[], np.datetime64],
    ) -> None:
        self._book = book
        self._tracked = tracked
        self._entry = entry
        self._stream = stream
        self._now = now
        self._run = secrets.token_hex(8)
        self._asked_at = self._asked_for_exits_at = -np.inf

    def ask_now(self) -> None:
        """Make the next call request stops and targets, which may have led to a state of the account."""
        self._asked_for_exits_at = -np.inf

    def since(self, told: EventCursor) -> tuple[list[BrokerEvent], EventCursor]:
        """The unreported events, and the cursor after them."""
        self._tracked.take_back(told.number if told.run == self._run else -1)
        for name, request in told.requests.items():
            self._tracked.track(name, legs=list(request.legs) or [name])
        if told.run not in ("", self._run) and told.after is not None:
            # The previous process may have ended between sending orders and reporting them.
            for order in self._book.ask_recent(told.after):
                if order.submitted > told.after:
                    self._tracked.track_found(name_of(order.client_order_id))
        self._tracked.track_groups()
        news = [each for each in self._tracked if self._may_have_news(each, told)]
        self._ask_for([each for each in news if not self._tracked.has_ended(each)])
        self._tracked.track_groups()  # with legs that the answers have shown
        news = [each for each in self._tracked if self._may_have_news(each, told)]
        self._entry.send_second_legs([each.client_order_id for each in news])
        events: list[BrokerEvent] = []
        after = EventCursor(self._run, self._tracked.number, self._latest(told.after))
        for tracked in news:
            request = told.requests.get(tracked.client_order_id, ReportedOrder())
            events += self._events(tracked, request)
            if not self._tracked.has_ended(tracked) and not self._tracked.never_came(tracked):
                after.requests[tracked.client_order_id] = request
        for tracked in self._tracked:
            if not self._may_have_news(tracked, told) and self._tracked.has_ended(tracked):
                self._tracked.set_aside(tracked)
        return events, after

    def _latest(self, before: np.datetime64 | None) -> np.datetime64:
        """When the latest order was sent; without orders, a time before now."""
        sent = [order.submitted for tracked in self._tracked for order in self._tracked.found(tracked)]
        if before is None and not sent:
            return self._now() - _CLOCKS_DIFFER
        return max([*sent, *([] if before is None else [before])])

    def _may_have_news(self, tracked: Tracked, told: EventCursor) -> bool:
        if tracked.client_order_id in told.requests:
            return True
        return told.run != self._run or tracked.number > told.number

    def _ask_for(self, tracked: Sequence[Tracked]) -> None:
        now = time.monotonic()
        orders, exits = ([each for each in tracked if each.is_exit == is_exit] for is_exit in (False, True))
        wanted = list[Tracked]()
        if orders and (self._stream.listening_since is None or now > self._asked_at + _ASK_FOR_ORDERS_EVERY_S):
            wanted, self._asked_at = orders, now
        if exits and now > self._asked_for_exits_at + _ASK_FOR_EXITS_EVERY_S:
            wanted, self._asked_for_exits_at = [*wanted, *exits], now
        self._book.refresh(leg for each in wanted for leg in each.legs)

    def _events(self, tracked: Tracked, request: ReportedOrder) -> list[BrokerEvent]:
        """The unreported events of one order; marks them as reported in `request`."""
        events: list[BrokerEvent] = []
        named = told_name(tracked.client_order_id)
        for order in self._tracked.found(tracked):
            told = request.legs.setdefault(order.client_order_id, Reported())
            fills, has_gap = fills_of(order, told, self._book.executions(order.order_id), named=named)
            if has_gap:
                self._book.ask_executions([order])
                more, has_gap = fills_of(order, told, self._book.executions(order.order_id), named=named)
                fills += more
            fills += [fill_of_rest(order, told, named=named)] if has_gap else []
            events += [fill._replace(exit=True) for fill in fills] if tracked.is_exit else fills
        is_told = (
            tracked.client_order_id in tracked.legs if tracked.is_exit else not self._tracked.is_half_sent(tracked)
        )
        if request.legs and is_told:
            update = self._tracked.update(tracked)
            filled = sum((told.filled for told in request.legs.values()), Decimal(0))
            if (update.status, filled) != (request.status, request.filled):
                request.status, request.filled = update.status, filled
                last = max([update.time, *(event.time for event in events)])
                events.append(update._replace(time=last))
        return events
