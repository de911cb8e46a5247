"""Costs, limits and the meaning of actions: settings that every trading environment shares."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ml_pipeline.config.checks import check_choice, check_non_negative, check_number, check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.orders import Terms

ActionMode = Literal["target_weights", "discrete", "buy_hold_sell", "trade"]
FillAt = Literal["next_open", "close"]
SizeAt = Literal["fill", "decision"]
OnLimit = Literal["clip", "refuse"]

ACTION_MODES = get_args(ActionMode)
# Size of a trade action of 1, in percent of equity, if trade_limit_percent is not set.
_USUAL_TRADE_PERCENT = 10.0
LARGEST_LEVERAGE = 20.0
_DAYS_PER_YEAR = 365
# Settings that need the high and low of a bar.
_WITHIN_RANGE = ("limit_bps", "stop_loss", "take_profit")


@dataclass(frozen=True, kw_only=True)
class CostsAndLimits:
    """Costs and limits of trading. Raises UserError if a value is out of range."""

    fill_at: FillAt = "next_open"
    """When orders fill: at the open of the next bar (next_open), or, optimistically, at the close at which they were
    decided (close)."""
    size_at: SizeAt = "fill"
    """Price that converts a target into a quantity: the fill price (fill), or the close at which the order was decided,
    as real brokers require (decision). Limit orders always use the close."""
    fee_bps: float = 5.0
    """Fee on the traded value, in basis points (hundredths of a percent), usually 0 to 30. With higher fees, the agent
    learns to trade less."""
    sell_fee_bps: float | None = None
    """Fee on sales, in basis points; none: fee_bps."""
    fixed_fee: float = 0.0
    """Fee per order, in money."""
    slippage_bps: float = 0.0
    """Loss from filling at a worse price, in basis points of the traded value. If the data have no quotes, include half
    the spread."""
    borrow_bps_per_year: float = 0.0
    """Borrowing fee of short positions, in basis points of their value per year."""
    financing_bps_per_year: float | None = None
    """Interest on borrowed money, in basis points per year, charged for each calendar day until the next bar. Borrowing
    fees of short positions are then charged by calendar day too; none: no interest, and borrowing fees in equal parts
    per bar."""
    lot_size: float = 0.0
    """Every order is a multiple of this quantity, such as 1 for whole shares; 0: any quantity."""
    min_order: float = 0.0
    """Value of the smallest order, in money; smaller orders are not sent."""
    max_position: float = 1.0
    """Largest position in one asset, as a fraction of equity; at most 1, or max_gross if that is larger."""
    max_gross: float = 1.0
    """Largest sum of all positions, long and short, as a fraction of equity, up to 20. Above 1, the account buys with
    borrowed money."""
    maintenance_margin: float = 0.25
    """If equity at a close is below this fraction of all positions, the broker closes them; used only if max_gross is
    above 1."""
    trade_limit_percent: float | None = None
    """Largest order per asset, in percent of equity; an action of 1 trades this much with action_mode trade. none: no
    limit, or 10 with action_mode trade."""
    action_threshold: float = 0.0
    """Continuous actions with an absolute value below this do not trade; from 0 to below 1."""
    min_cash: float = 0.0
    """Fraction of equity that purchases leave in cash; use about 0.01 for a real broker's account."""
    flat_at_close: bool = False
    """Close all positions at the last fill of each session, or of each day in timezone if there is no session."""
    limit_bps: float | None = None
    """Send limit orders, valid for one bar, with prices this many basis points better than the close of the decision:
    below it for buys, above it for sales. An order fills if the bar trades through its price. none: market orders."""
    stop_loss: float | None = None
    """Loss at which a position is closed within a bar, as a fraction of its average entry price; none: no stop loss."""
    take_profit: float | None = None
    """Profit at which a position is closed within a bar, as a fraction of its average entry price; none: no take
    profit."""
    on_limit: OnLimit = "clip"
    """What to do with a target beyond max_position or max_gross: reduce it to the limit (clip), or end with an error
    (refuse)."""
    initial_cash: float = 10_000.0
    """Cash at the start of an episode."""

    def __post_init__(self) -> None:
        check_choice("fill_at", self.fill_at, ("next_open", "close"))
        check_choice("size_at", self.size_at, ("fill", "decision"))
        check_choice("on_limit", self.on_limit, ("clip", "refuse"))
        for name in ("fee_bps", "sell_fee_bps", "slippage_bps"):
            if name != "sell_fee_bps" or self.sell_fee_bps is not None:
                check_number(name, getattr(self, name), lambda bps: 0 <= bps <= 1_000, "from 0 to 1000 basis points")
        yearly = self.borrow_bps_per_year
        check_number("borrow_bps_per_year", yearly, lambda bps: 0 <= bps <= 100_000, "from 0 to 100000 basis points")
        for name in ("fixed_fee", "lot_size", "min_order"):
            check_non_negative(name, getattr(self, name))
        for name in ("max_position", "max_gross"):
            part = getattr(self, name)
            expected = f"above 0 and at most {LARGEST_LEVERAGE:g}, a fraction of equity"
            check_number(name, part, lambda part: 0 < part <= LARGEST_LEVERAGE, expected)
        if (percent := self.trade_limit_percent) is not None:
            check_number("trade_limit_percent", percent, lambda percent: 0 < percent <= 200, "above 0 and at most 200")
        check_number("action_threshold", self.action_threshold, lambda size: 0 <= size < 1, "from 0 to below 1")
        check_number("min_cash", self.min_cash, lambda part: 0 <= part < 1, "from 0 to below 1, a fraction of equity")
        if (part := self.stop_loss) is not None:
            check_number("stop_loss", part, lambda part: 0 < part < 1, "above 0 and below 1, a fraction of the price")
        if (part := self.take_profit) is not None:
            check_number("take_profit", part, lambda part: 0 < part <= 10, "above 0 and at most 10, a fraction")
        check_positive("initial_cash", self.initial_cash)
        if (distance := self.limit_bps) is not None:
            expected = "from 0 to below 10000 basis points"
            check_number("limit_bps", distance, lambda bps: 0 <= bps < 10_000, expected)
            if self.fill_at == "close":
                raise UserError(
                    'limit_bps fills orders within the next bar, and not at the close; use fill_at "next_open", '
                    "or leave limit_bps out."
                )
        self._check_leverage()

    def _check_leverage(self) -> None:
        if self.max_position > max(1.0, self.max_gross):
            raise UserError(
                f"max_position {self.max_position:g} is above max_gross {self.max_gross:g}, which bounds all positions "
                f"together; raise max_gross to {self.max_position:g} to trade with borrowed money."
            )
        check_number("maintenance_margin", self.maintenance_margin, lambda part: 0 < part < 1, "above 0 and below 1")
        if self.max_gross > 1 and self.maintenance_margin * self.max_gross >= 1:
            raise UserError(
                f"maintenance_margin {self.maintenance_margin:g} would close positions of max_gross "
                f"{self.max_gross:g} times the equity as soon as they are opened; lower one of the two, so that their "
                "product is below 1."
            )
        if (rate := self.financing_bps_per_year) is not None:
            expected = "from 0 to 100000 basis points"
            check_number("financing_bps_per_year", rate, lambda bps: 0 <= bps <= 100_000, expected)
            if self.fill_at == "close":
                raise UserError(
                    "financing_bps_per_year charges positions for the nights after each close, but with fill_at "
                    '"close" they change at that close; use fill_at "next_open", or leave it out.'
                )


@dataclass(frozen=True)
class TradingRules(CostsAndLimits):
    """Meaning of actions, execution of orders, and their costs.

    action_mode:
    - "target_weights": a Box with one weight per asset, as fractions of equity; the rest stays in cash.
    - "discrete": short, flat or long for each asset (flat or long without allow_short), each asset with an equal part
      of the equity; a repeated choice holds the position and does not trade.
    - "buy_hold_sell": 0 sells, 1 holds, 2 buys: one step along short, flat, long.
    - "trade": a Box with one number from -1 to 1 per asset: how much to buy or sell, in units of trade_limit_percent
      of the equity; a number below action_threshold does not trade.
    Raises UserError if a value is out of range.
    """

    action_mode: ActionMode = "discrete"
    allow_short: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("action_mode", self.action_mode, ACTION_MODES)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each choice of a discrete action: -1 short, 0 flat, 1 long."""
        return (-1, 0, 1) if self.allow_short else (0, 1)

    @property
    def trade_percent(self) -> float:
        """Largest order per asset, in percent of equity; infinite if there is no limit."""
        return self.trade_limit_percent or (_USUAL_TRADE_PERCENT if self.action_mode == "trade" else math.inf)

    @property
    def needs_range(self) -> str | None:
        """Name of a setting that needs the high and low of each bar, or None."""
        return next((name for name in _WITHIN_RANGE if getattr(self, name) is not None), None)

    @property
    def acts_within_bars(self) -> bool:
        """Whether a bar can hold more than fills at one price, see `within_bar`."""
        more = self.leverage > 1 or self.financing_bps_per_year is not None
        return more or self.needs_range is not None or self.sizes_at_decision

    @property
    def sizes_at_decision(self) -> bool:
        """Whether market orders are sized at a price other than that of their fill."""
        return self.size_at == "decision" and self.fill_at == "next_open"

    @property
    def leverage(self) -> float:
        """Largest sum of all positions as a multiple of equity; 1 without borrowing."""
        return max(1.0, self.max_gross)

    @property
    def largest_weight(self) -> float:
        """Largest weight of an asset in the action space."""
        return max(1.0, self.max_position)

    def may_refuse(self, n_assets: int) -> bool:
        """Whether the action space holds actions beyond a limit, which `on_limit` "refuse" rejects."""
        if self.on_limit == "clip" or self.action_mode == "trade":
            return False
        whole = self.leverage
        position, gross = (whole / n_assets, whole)
        if self.action_mode == "target_weights":
            position, gross = self.largest_weight, self.largest_weight * n_assets
        return position > self.max_position or gross > self.max_gross

    def terms(self, periods_per_year: float) -> Terms:
        """These rules in the form that the kernel needs. periods_per_year: bars per year."""
        sell_fee_bps = self.fee_bps if self.sell_fee_bps is None else self.sell_fee_bps
        charges_per_year = periods_per_year if self.financing_bps_per_year is None else _DAYS_PER_YEAR
        return Terms(
            buy_rate=(self.fee_bps + self.slippage_bps) / 10_000,
            sell_rate=(sell_fee_bps + self.slippage_bps) / 10_000,
            fixed_fee=self.fixed_fee,
            borrow_rate=self.borrow_bps_per_year / 10_000 / charges_per_year,
            lowest=-self.max_position if self.allow_short else 0.0,
            highest=self.max_position,
            max_gross=self.max_gross,
            max_trade=self.trade_percent / 100,
            reserve=self.min_cash - (self.leverage - 1.0),
            smallest_order=self.min_order,
            lot=self.lot_size,
            relative=float(self.action_mode == "trade"),
            stop_loss=self.stop_loss or 0.0,
            take_profit=self.take_profit or 0.0,
            limit=-1.0 if self.limit_bps is None else self.limit_bps / 10_000,
            maintenance=self.maintenance_margin if self.leverage > 1 else 0.0,
            sized_at_decision=float(self.sizes_at_decision),
            financing_rate=(self.financing_bps_per_year or 0.0) / 10_000 / _DAYS_PER_YEAR,
        )
