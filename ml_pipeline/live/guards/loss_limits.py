"""Losses that end a session: of a day, and from the highest equity. What tripped stays so until a person lets it go."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.guards.exposure import ROUNDING
from ml_pipeline.live.guards.guard import AccountNow, Guard
from ml_pipeline.live.guards.guard_config import OnLoss
from ml_pipeline.live.guards.verdict import TRADE, Refusal, Verdict
from ml_pipeline.trading.market.times import as_text

_DONE = {"hold": "positions are held", "flatten": "positions are closed"}


class LossLimits(NamedTuple):
    """At which losses trading ends; None: at none. daily, drawdown: fractions of equity. daily_money: in money."""

    daily: float | None = None
    daily_money: float | None = None
    drawdown: float | None = None


class Losses(Guard):
    """Ends the session once the loss of a day, or the fall from the highest equity, reaches its limit.

    A day begins with the equity at the last bar of the day before, so that a loss overnight counts. It trips at a bar,
    and the session is not to be traded again, in this process or in the next, until `reset` names the time of that bar.
    Losses then count from the equity that is there. A `reset` that stays in the settings lets nothing else go.
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
