"""Guards on the account, its decisions and its orders: impossible numbers, sizes and rates, losses, the kill file."""

import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.risk.config import OnLoss, Response
from ml_pipeline.live.risk.guard import (
    ROUNDING,
    TRADE,
    AccountNow,
    DecisionMade,
    Exposure,
    Guard,
    Moment,
    Refusal,
    Verdict,
)
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.times import as_text

_MOST_NAMED = 3


class ImpossibleAction(Guard):
    """Trades nothing if an action or a weight is NaN or infinite."""

    name = "impossible_action"

    def on_decision(self, decision: DecisionMade) -> Verdict:
        for what, numbers in (("action", decision.action), ("target weights", decision.weights)):
            values = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
            if not np.isfinite(values).all():
                shown = np.array2string(values.ravel(), threshold=10, precision=4)
                sentence = f"Nothing is ordered: the {what} {shown} of the policy cannot be traded."
                wrong = float(values[~np.isfinite(values)][0])
                return Verdict((Refusal(self.name, None, wrong, math.nan, sentence),), "hold")
        return TRADE


class FeatureRange(Guard):
    """Features outside their range in training by more than a fraction of the range's width."""

    name = "guard_features"

    def __init__(self, response: Response, beyond: float) -> None:
        self._response = response
        self._beyond = beyond

    def on_decision(self, decision: DecisionMade) -> Verdict:
        features = decision.out_of_range
        far = [(_widths_outside(value, low, high), column, value, low, high) for column, value, low, high in features]
        far = sorted((each for each in far if each[0] > self._beyond), reverse=True)
        if not far:
            return TRADE
        named = "; ".join(
            f"{column} is {value:.6g}, and was always {low:.6g}"
            if low == high
            else f"{column} is {value:.6g}, {distance:.4g} range widths outside {low:.6g} to {high:.6g}"
            for distance, column, value, low, high in far[:_MOST_NAMED]
        )
        more = f"; and {len(far) - _MOST_NAMED:,} more" if len(far) > _MOST_NAMED else ""
        done = {"warn": "", "hold": " Positions are held.", "flatten": " Positions are closed."}[self._response]
        sentence = (
            f"Outside the training range by more than guard_features_beyond {self._beyond:g}: {named}{more}.{done}"
        )
        told = Refusal(self.name, None, far[0][0], self._beyond, sentence, warning=self._response == "warn")
        return Verdict((told,), "trade" if self._response == "warn" else self._response)


def _widths_outside(value: float, low: float, high: float) -> float:
    """Distance of a value from a range, in widths of the range; infinite if the range is a single value.

    >>> _widths_outside(13.0, 0.0, 10.0), _widths_outside(-5.0, 0.0, 10.0), _widths_outside(2.0, 0.0, 10.0)
    (0.3, 0.5, 0.0)
    """
    distance = max(low - value, value - high, 0.0)
    if distance == 0.0:
        return 0.0
    return distance / (high - low) if high > low else math.inf


_MINUTE = np.timedelta64(60, "s")


def impossible_order(order: OrderRequest, account: Exposure, symbols: frozenset[str]) -> Refusal | None:
    """Why an order is impossible, even one that closes a position: NaN, infinite, or of a symbol not traded here."""
    name = "impossible_order"
    if order.symbol not in symbols:
        sentence = f'The order of "{order.symbol}" is refused: this session does not trade it.'
        return Refusal(name, order.symbol, math.nan, math.nan, sentence)
    quantity = float(order.quantity)
    for what, value in (("quantity", quantity), ("weight", order.weight), ("limit price", order.limit_price)):
        if value is not None and not math.isfinite(value):
            sentence = f"The order of {order.symbol} is refused: its {what} is {value}."
            return Refusal(name, order.symbol, value, math.nan, sentence)
    if order.limit_price is not None and order.limit_price <= 0.0:
        sentence = f"The order of {order.symbol} is refused: its limit price is {order.limit_price:g}."
        return Refusal(name, order.symbol, order.limit_price, 0.0, sentence)
    # An order with quantity 0 is judged by its weight; the broker that sizes it finds no price either.
    if order.quantity and not account.knows(order.symbol) and not closes_position(order, account):
        sentence = (
            f"The order of {order.symbol} is refused: its last price is {account.price(order.symbol):g}, so its value "
            "is unknown."
        )
        return Refusal(name, order.symbol, account.price(order.symbol), math.nan, sentence)
    return None


def closes_position(order: OrderRequest, account: Exposure) -> bool:
    """Whether a closing order really closes a position; no guard then refuses it."""
    return order.closing and order.weight == 0.0 and (order.quantity == 0.0 or account.reduces(order))


class LargestPosition(Guard):
    """The largest position in one symbol after an order, in money or as a fraction of equity."""

    name = "guard_position"

    def __init__(self, *, fraction: float | None = None, money: float | None = None) -> None:
        self._fraction = fraction
        self._money = money

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: the position would be"
        return _beyond(
            self.name, what, order, account.position_after(order), account, fraction=self._fraction, money=self._money
        )


class OrderSize(Guard):
    """The largest order, in money or as a fraction of equity."""

    name = "guard_order"

    def __init__(self, *, fraction: float | None = None, money: float | None = None) -> None:
        self._fraction = fraction
        self._money = money

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: it is"
        return _beyond(
            self.name, what, order, account.order_value(order), account, fraction=self._fraction, money=self._money
        )


class GrossExposure(Guard):
    """The largest sum of all positions, long and short, after the orders of one decision."""

    name = "guard_gross"

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        what = f"The order of {_shown(order)} is refused: all positions together would be"
        return _beyond(self.name, what, order, account.gross_after(order), account, fraction=self._fraction)


class OrderRate(Guard):
    """The largest number of orders within 60 seconds. Orders that reduce positions count but are never refused."""

    name = "guard_orders_per_minute"

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: deque[np.datetime64] = deque()

    def on_order(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        self._forget_before(now)
        if len(self._sent) < self._most:
            return None
        sentence = (
            f"The order of {_shown(order)} is refused: it would be number {len(self._sent) + 1:,} within a minute, and "
            f"guard_orders_per_minute allows {self._most:,}."
        )
        return Refusal(self.name, order.symbol, float(len(self._sent) + 1), float(self._most), sentence)

    def note_sent(self, order: OrderRequest, now: np.datetime64) -> None:
        self._forget_before(now)
        self._sent.append(now)

    def _forget_before(self, now: np.datetime64) -> None:
        # If the clock was set back, some times are in the future: they count until they are a minute old.
        while self._sent and self._sent[0] <= now - _MINUTE:
            self._sent.popleft()

    def state(self) -> dict[str, Any]:
        return {"sent": [str(time.astype("datetime64[ns]")) for time in self._sent]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._sent = deque(np.datetime64(time, "ns") for time in state["sent"])


def _shown(order: OrderRequest) -> str:
    quantity = float(order.quantity)
    return f"{quantity:+,.10g} {order.symbol}" if quantity else f"{order.weight:.4g} in {order.symbol}"


def _beyond(
    name: str,
    what: str,
    order: OrderRequest,
    value: float,
    account: Exposure,
    *,
    fraction: float | None = None,
    money: float | None = None,
) -> Refusal | None:
    """A refusal if `value`, in money, exceeds a limit or is NaN."""
    equity = account.equity
    if fraction is not None and not value <= fraction * equity * (1 + ROUNDING):
        part = value / equity if equity > 0.0 else math.inf
        sentence = f"{what} {value:,.2f}, {part:.6g} of the equity of {equity:,.2f}, and {name} allows {fraction:g}."
        return Refusal(name, order.symbol, part, fraction, sentence)
    if money is not None and not value <= money * (1 + ROUNDING):
        sentence = f"{what} {value:,.2f} in money, and {name}_money allows {money:,.2f}."
        return Refusal(f"{name}_money", order.symbol, value, money, sentence)
    return None


_DONE = {"hold": "positions are held", "flatten": "positions are closed"}


class LossLimits(NamedTuple):
    """Losses that end trading; None: no limit. daily, drawdown: fractions of equity. daily_money: in money."""

    daily: float | None = None
    daily_money: float | None = None
    drawdown: float | None = None


class Losses(Guard):
    """Ends the session when the daily loss, or the drawdown from the highest equity, reaches its limit.

    A day begins with the equity at the last bar of the day before, so overnight losses count. When the guard trips at a
    bar, the session does not trade again, in this process or the next, until `reset` names the time of that bar.
    Losses then count from the current equity. A `reset` that stays in the settings resets only that limit.
    """

    name = "guard_losses"

    def __init__(self, limits: LossLimits, *, on_loss: OnLoss, reset: str | None = None) -> None:
        self._limits = limits
        self._on_loss: OnLoss = on_loss
        self._reset = None if reset is None else _to_the_second(np.datetime64(reset.removesuffix("Z")))
        self._day: str | None = None
        self._began_with = math.nan
        self._highest = math.nan
        self._last = math.nan
        self._tripped: _Tripped | None = None

    def on_account(self, account: AccountNow) -> Verdict:
        if self._tripped is not None and not self._let_go(self._tripped):
            return self._ended(self._tripped, again=True)
        if not math.isfinite(account.equity):
            sentence = f"Nothing is ordered: the equity is {account.equity}."
            return Verdict((Refusal(self.name, None, account.equity, math.nan, sentence),), "hold")
        if self._tripped is not None:
            self._tripped = None
            self._day, self._began_with, self._highest = account.day, account.equity, account.equity
        elif account.day != self._day:
            self._day = account.day
            self._began_with = self._last if math.isfinite(self._last) else account.equity
        self._last = account.equity
        if not self._highest >= account.equity:
            self._highest = account.equity
        self._tripped = self._reached(account)
        return TRADE if self._tripped is None else self._ended(self._tripped, again=False)

    def note_flow(self, amount: float) -> None:
        self._began_with, self._highest, self._last = (
            before + amount for before in (self._began_with, self._highest, self._last)
        )

    def _let_go(self, tripped: "_Tripped") -> bool:
        return self._reset is not None and self._reset == _to_the_second(np.datetime64(tripped.bar_time))

    def _reached(self, account: AccountNow) -> "_Tripped | None":
        lost, fallen = self._began_with - account.equity, self._highest - account.equity
        day, peak = f"the day began with {self._began_with:,.2f}", f"the highest was {self._highest:,.2f}"
        for name, loss, base, limit, since in (
            ("guard_daily_loss", lost, self._began_with, self._limits.daily, day),
            ("guard_drawdown", fallen, self._highest, self._limits.drawdown, peak),
            ("guard_daily_loss_money", lost, 1.0, self._limits.daily_money, day),
        ):
            if limit is None or loss < limit * base * (1 - ROUNDING):
                continue
            part = loss / base
            share = f"{loss:,.2f}" if name.endswith("money") else f"{loss:,.2f}, {part:.6g} of it"
            allowed = f"{limit:,.2f}" if name.endswith("money") else f"{limit:g}"
            sentence = f"The equity is {account.equity:,.2f}, and {since}: the loss of {share} reaches {name} {allowed}"
            return _Tripped(name, str(account.bar_time), part, limit, sentence)
        return None

    def _ended(self, tripped: "_Tripped", *, again: bool) -> Verdict:
        at = str(_to_the_second(np.datetime64(tripped.bar_time)))
        when = f" on the bar of {as_text(np.datetime64(tripped.bar_time, 'ns'))}" if again else ""
        sentence = (
            f"{tripped.sentence}{when}; {_DONE[self._on_loss]}, and the session ends. Start it with --guard-reset {at} "
            "to trade again."
        )
        refusal = Refusal(tripped.guard, None, tripped.value, tripped.limit, sentence)
        return Verdict((refusal,), self._on_loss, ends=sentence)

    def state(self) -> dict[str, Any]:
        numbers = {"began_with": self._began_with, "highest": self._highest, "last": self._last}
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**known, "day": self._day, "tripped": None if self._tripped is None else list(self._tripped)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._day = state["day"]
        self._began_with, self._highest, self._last = (
            math.nan if state[name] is None else state[name] for name in ("began_with", "highest", "last")
        )
        self._tripped = None if state["tripped"] is None else _Tripped(*state["tripped"])


class _Tripped(NamedTuple):
    guard: str
    bar_time: str
    value: float
    limit: float
    sentence: str


def _to_the_second(time: np.datetime64) -> np.datetime64:
    return time.astype("datetime64[s]")


class KillFile(Guard):
    """Holds or closes positions while the file exists, which is checked on each bar and again before orders.

    If the check fails with an error, the file counts as existing.
    """

    name = "kill_file"

    def __init__(self, path: Path, on_kill_file: OnLoss, look: Callable[[Path], object] = os.lstat) -> None:
        """look: raises FileNotFoundError if there is no file. Raises UserError if its folder is missing, because the
        kill file of a mistyped name would do nothing, or if it is a folder, which would hold for ever.
        """
        self._path = path.expanduser().absolute()
        self._action: OnLoss = on_kill_file
        self._look = look
        if not self._path.parent.is_dir():
            raise UserError(
                f"The folder of kill_file {shown_path(self._path)} does not exist; create it, or name another file."
            )
        if self._path.is_dir():
            raise UserError(
                f"kill_file {shown_path(self._path)} is a folder; name a file that you create to stop orders."
            )

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        return self._verdict()

    def before_orders(self) -> Verdict:
        return self._verdict()

    def _verdict(self) -> Verdict:
        path = shown_path(self._path)
        try:
            self._look(self._path)
        except FileNotFoundError:
            return TRADE
        except OSError as error:
            why = f"The kill file {path} cannot be checked ({error.strerror})"
        else:
            why = f"The kill file {path} exists"
        done = "held" if self._action == "hold" else "closed"
        refusal = Refusal(self.name, None, math.nan, math.nan, f"{why}: nothing is ordered, and positions are {done}.")
        return Verdict((refusal,), self._action)
