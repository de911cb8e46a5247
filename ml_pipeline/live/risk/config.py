"""Settings of guards: what may not be ordered, what ends a session, and what is only reported."""

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
    """Limits on orders and losses in live trading, on top of the rules of the training.

    An order beyond a limit is refused, not reduced. An order that only reduces a position is always allowed. Limits
    are off by default, so that a replay reproduces the ledger of the backtest. Impossible actions and prices, crossed
    quotes, late data and orders in a closed market are always refused. Raises UserError if a value is invalid.
    """

    guard_position: float | None = None
    """Largest position in one symbol after an order, as a fraction of equity; none: no limit."""
    guard_position_money: float | None = None
    """Largest position in one symbol after an order, in money; none: no limit."""
    guard_gross: float | None = None
    """Largest sum of all positions, long and short, after the orders, as a fraction of equity; none: no limit."""
    guard_order: float | None = None
    """Largest order, as a fraction of equity; none: no limit."""
    guard_order_money: float | None = None
    """Largest order, in money; none: no limit."""
    guard_orders_per_minute: int | None = None
    """Largest number of orders within 60 seconds; none: no limit."""
    guard_daily_loss: float | None = None
    """Daily loss that ends trading, as a fraction of the equity at the start of the day; none: no limit."""
    guard_daily_loss_money: float | None = None
    """Daily loss that ends trading, in money; none: no limit."""
    guard_drawdown: float | None = None
    """Drawdown from the session's highest equity that ends trading, as a fraction of that equity; none: no limit."""
    guard_on_loss: OnLoss = "flatten"
    """What to do at a loss limit before the session ends: close all positions (flatten), or hold them."""
    guard_reset: str | None = None
    """Time at which a loss limit ended the session, as its message gives it: trade again and count losses from zero.
    A later loss ends the session again."""
    guard_stale_s: float | None = None
    """Largest age of bars to trade on, in seconds since their close; none: the length of a bar."""
    guard_clock_s: float = 5.0
    """Largest difference between this machine's clock and the broker's at which to trade, in seconds."""
    guard_price_jump: float | None = None
    """Largest change of a price from one bar to the next, as a fraction; beyond it the symbol is not traded on that
    bar; none: no limit."""
    guard_price_jump_deviations: float | None = None
    """The same limit in standard deviations of the symbol's earlier changes per bar, recent ones weighted most; none:
    no limit."""
    guard_features: Response = "warn"
    """What to do on a bar with a feature outside its range in training: only report it (warn), hold positions, or
    close them (flatten)."""
    guard_features_beyond: float = 0.5
    """How far a feature may lie outside its range in training, as a fraction of the width of the range."""
    guard_half_day: Response = "warn"
    """What to do in a market session that is shorter than usual: only report it (warn), hold positions, or close them
    (flatten)."""
    guard_halt_bars: int | None = None
    """Number of missing bars after which a symbol counts as halted and is not traded until its next bar; none:
    never."""
    kill_file: Path | None = None
    """File that stops all orders as long as it exists; you create and remove it."""
    on_kill_file: OnLoss = "hold"
    """What to do with positions when the kill file appears: hold them, or close all (flatten)."""

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
        check_positive("guard_clock_s", self.guard_clock_s, remedy="the usual one is 5")
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
                f'2026-03-02T15:30, but got "{self.guard_reset}"; the message in live.jsonl gives it.'
            )
