"""The settings of guards: what may not be ordered, what ends a session, and what is only told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ml_pipeline.config.checks import check_choice, check_count, check_non_negative, check_number, check_positive
from ml_pipeline.config.errors import UserError

OnLoss = Literal["hold", "flatten"]
Response = Literal["warn", "hold", "flatten"]

_FRACTIONS = ("guard_position", "guard_gross", "guard_order", "guard_price_jump")
_AMOUNTS = ("guard_position_money", "guard_order_money", "guard_daily_loss_money")
_LOSSES = ("guard_daily_loss", "guard_drawdown")
_RESPONSES = ("guard_features", "guard_half_day")
_ACTIONS_AT_AN_END = ("guard_on_loss", "on_kill_file")


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What orders and losses are allowed in live trading, besides the rules that the policy was trained with.

    An order beyond a limit is refused, not cut to it; one that only reduces a position is always allowed. Limits are
    off unless they are set, so that a replay makes the ledger of the backtest. Impossible actions and prices, crossed
    quotes, late data and a closed market are always refused. Raises UserError where a value cannot be used.
    """

    guard_position: float | None = None
    """Largest position in one symbol that an order may lead to, as a fraction of equity; none: no limit."""
    guard_position_money: float | None = None
    """Largest position in one symbol that an order may lead to, in money; none: no limit."""
    guard_gross: float | None = None
    """Largest sum of all positions, long and short, that orders may lead to, as a fraction of equity; none: no
    limit."""
    guard_order: float | None = None
    """Largest order, as a fraction of equity; none: no limit."""
    guard_order_money: float | None = None
    """Largest order, in money; none: no limit."""
    guard_orders_per_minute: int | None = None
    """Largest number of orders within 60 seconds; none: no limit."""
    guard_daily_loss: float | None = None
    """Loss of a day at which trading ends, as a fraction of the equity that the day began with; none: no limit."""
    guard_daily_loss_money: float | None = None
    """Loss of a day at which trading ends, in money; none: no limit."""
    guard_drawdown: float | None = None
    """Fall from the highest equity of the session at which trading ends, as a fraction of it; none: no limit."""
    guard_on_loss: OnLoss = "flatten"
    """What a loss limit does before it ends the session: close all positions, or hold them as they are."""
    guard_reset: str | None = None
    """Trade again after a loss limit ended the session at this time, which its sentence names, and count losses anew;
    a later loss ends the session again."""
    guard_stale_s: float | None = None
    """Age of bars, in seconds since they closed, beyond which nothing is ordered on them; none: the length of a bar."""
    guard_price_jump: float | None = None
    """Largest change of a price from one bar to the next, as a fraction; a symbol beyond it is not traded on that bar;
    none: no limit."""
    guard_price_jump_deviations: float | None = None
    """The same in standard deviations of the symbol's changes per bar so far, the latest counting most; none: no
    limit."""
    guard_features: Response = "warn"
    """What happens on a bar with a feature outside the range seen in training: only tell, hold positions, or close
    them."""
    guard_features_beyond: float = 0.5
    """How far outside that range a feature may lie, as a fraction of the width of the range."""
    guard_half_day: Response = "warn"
    """What happens in a session that is shorter than usual: only tell, hold positions, or close them."""
    guard_halt_bars: int | None = None
    """Number of bars without one of a symbol after which it counts as halted, and is not traded until it has one;
    none: never."""
    kill_file: Path | None = None
    """A file of your own: as long as it exists, nothing is ordered."""
    on_kill_file: OnLoss = "hold"
    """What happens to positions when the kill file appears: hold them, or close all."""

    def __post_init__(self) -> None:
        for name in (*_FRACTIONS, *_AMOUNTS, "guard_stale_s", "guard_price_jump_deviations"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value, remedy="leave it out for no limit" if name != "guard_stale_s" else "")
        for name in _LOSSES:
            if (part := getattr(self, name)) is not None:
                check_number(name, part, lambda part: 0 < part < 1, "above 0 and below 1, a fraction of equity")
        for name in ("guard_orders_per_minute", "guard_halt_bars"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count)
        check_non_negative("guard_features_beyond", self.guard_features_beyond)
        for name in _ACTIONS_AT_AN_END:
            check_choice(name, getattr(self, name), get_args(OnLoss))
        for name in _RESPONSES:
            check_choice(name, getattr(self, name), get_args(Response))
        if self.guard_reset is not None:
            self._check_reset()

    def _check_reset(self) -> None:
        try:
            time = np.datetime64(str(self.guard_reset).removesuffix("Z"))
        except ValueError:
            time = np.datetime64("NaT")
        if np.isnat(time):
            raise UserError(
                "guard_reset must be the time at which the loss limit ended the session, such as "
                f'2026-03-02T15:30, but got "{self.guard_reset}"; the sentence in live.jsonl names it.'
            )
