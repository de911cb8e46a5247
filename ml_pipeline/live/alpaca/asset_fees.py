"""Fees of crypto at Alpaca, which are taken from what was bought.

An order of 0.1 BTC reports 0.1 as filled, but the account receives 0.09975. Neither the order nor its fills show the
fee, and the activity (CFEE) comes a day later. The position shows it: fee = position before + fills - position after.
Sources: https://alpaca.markets/docs/crypto/activities/, https://github.com/alpacahq/alpaca-py/issues/374.
Fees of sales are in dollars. It is assumed that a sale adds its whole proceeds to the cash, and that the fee leaves it
when Alpaca posts it as an activity (FEE) at the end of the day; it is then reported as a charge. If Alpaca took it at
once, the comparison with the books would find cash missing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any

from ml_pipeline.live.brokers.broker import SMALLEST_QUANTITY, Fill

_LARGEST_FEE = Decimal("0.003")
"""As a fraction of what was bought; Alpaca's largest is 0.0025."""
_SHOWN_WITHIN_S = 5.0
"""After a fill, the position shows it within this time; afterwards the fill is reported without its fee."""

Positions = Mapping[str, Decimal]


def is_pair(symbol: str) -> bool:
    """Whether a symbol is crypto, such as BTC/USD."""
    return "/" in symbol


class AssetFees:
    """Reports fills of crypto as the account received them. ask: requests the positions of the account.

    The cursor of events has the positions to which the reported fills add up; `note_account` replaces them if others
    changed the account.
    """

    def __init__(self, ask: Callable[[], Positions]) -> None:
        self._ask = ask
        self._first: dict[str, Decimal] = {}
        self._seen: tuple[str | None, dict[str, Decimal]] | None = None  # positions that follow a cursor
        self._cursor: str | None = None
        self._may_fill = False
        self._waiting_since: float | None = None

    def begin(self) -> None:
        """Remember the positions before the first order of this process."""
        self._first = _pairs(self._ask())

    def note_account(self, positions: Positions) -> None:
        """Note the positions of the account; ignored while orders may be filled that were not reported yet."""
        if not self._may_fill:
            self._seen = self._cursor, _pairs(positions)

    def note_sent(self, symbols: Iterable[str]) -> None:
        self._may_fill = self._may_fill or any(map(is_pair, symbols))

    def note_cursor(self, cursor: str, open_symbols: Iterable[str]) -> None:
        """Note the cursor after the latest events. open_symbols: of orders that have not ended."""
        self._cursor, self._may_fill = cursor, any(map(is_pair, open_symbols))

    def taken_off(
        self, cursor: str | None, held: Positions | None, events: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Decimal]] | None:
        """(the events with what the account received, the positions after them); None: the position does not show the
        fills yet.

        cursor, held: the cursor before the events, and its positions.
        """
        base = self._first if held is None else held
        after = dict(self._seen[1] if self._seen is not None and self._seen[0] == cursor else base)
        fills = [event for event in events if isinstance(event, Fill) and is_pair(event.symbol)]
        bought: dict[str, Decimal] = {}
        for fill in fills:
            after[fill.symbol] = after.get(fill.symbol, Decimal(0)) + fill.quantity
            bought[fill.symbol] = bought.get(fill.symbol, Decimal(0)) + max(fill.quantity, Decimal(0))
        bought = {symbol: quantity for symbol, quantity in bought.items() if quantity}
        if not bought:
            return list(events), after
        positions, fees = self._ask(), dict[str, Decimal]()
        for symbol, quantity in bought.items():
            has = positions.get(symbol, Decimal(0))
            fees[symbol] = after[symbol] - has
            if not 0 <= fees[symbol] <= _LARGEST_FEE * quantity:
                if cursor is not None and self._waits():
                    return None
                fees[symbol] = Decimal(0)  # others trade in this account: the comparison with the books finds it
            after[symbol] = has
        self._waiting_since = None
        return [_received(event, fees, bought) for event in events], after

    def _waits(self) -> bool:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now <= self._waiting_since + _SHOWN_WITHIN_S:
            return True
        self._waiting_since = None
        return False


def _received(event: Any, fees: dict[str, Decimal], bought: dict[str, Decimal]) -> Any:
    """The fill without its part of the fee, which becomes a cost; takes the part from `fees` and `bought`."""
    if not isinstance(event, Fill) or not fees.get(event.symbol) or event.quantity < 0:
        return event
    rest, quantity = fees[event.symbol], event.quantity
    fee = (rest * quantity / bought[event.symbol]).quantize(SMALLEST_QUANTITY, ROUND_DOWN)
    fee = rest if quantity == bought[event.symbol] else fee
    fees[event.symbol], bought[event.symbol] = rest - fee, bought[event.symbol] - quantity
    return event._replace(quantity=quantity - fee, costs=event.costs + float(fee) * event.price)


def _pairs(positions: Positions) -> dict[str, Decimal]:
    return {symbol: quantity for symbol, quantity in positions.items() if is_pair(symbol)}
