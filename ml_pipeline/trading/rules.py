"""What an account may do and what it pays: the part of the settings that every trading environment shares."""

from dataclasses import dataclass
from typing import Literal

ActionMode = Literal["target_weights", "discrete"]
FillAt = Literal["next_open", "close"]


@dataclass(frozen=True)
class TradingRules:
    """How orders arise, are filled, and what they cost.

    action_mode: "target_weights", a Box of one weight an asset (parts of equity, scaled down where their absolute sum
    exceeds 1; the rest is cash), or "discrete", for each asset short, flat or long (without allow_short flat or long)
    with an equal part of the equity; there a repeated choice holds and trades nothing.
    fill_at: the price an order decided at the close of bar t is filled at: "next_open" of bar t+1, or "close" of bar t.
    fee_bps, slippage_bps: costs of traded value, in hundredths of a percent; slippage holds half the spread too.
    """

    action_mode: ActionMode = "discrete"
    allow_short: bool = True
    fill_at: FillAt = "next_open"
    fee_bps: float = 5.0
    slippage_bps: float = 0.0
    initial_cash: float = 10_000.0

    @property
    def cost_rate(self) -> float:
        """Costs as a part of traded value."""
        return (self.fee_bps + self.slippage_bps) / 10_000

    @property
    def positions(self) -> tuple[int, ...]:
        """What the discrete actions 0, 1, .. mean: -1 short, 0 flat, 1 long."""
        return (-1, 0, 1) if self.allow_short else (0, 1)
