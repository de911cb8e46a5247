"""Everything a user sets for trading: one frozen dataclass, checked when it is made."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features import DEFAULT_FEATURES, make_features
from ml_pipeline.trading.rules import ActionMode, FillAt, TradingRules


@dataclass(frozen=True)
class TradingConfig:
    """Settings of the market, of what is seen of it, and of what trading it costs."""

    data: Path | None = None
    """Market data: a CSV or Parquet file, or a folder with a file a symbol; without it, the built-in market."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, in this order; none means all there are."""
    features: tuple[str, ...] = DEFAULT_FEATURES
    """What is seen of each asset; any span will do (log_return_60); time_of_day and time_of_week are there as well."""
    window: int = 1
    """How many bars of features an observation holds, the latest included."""
    action_mode: Literal["auto", "discrete", "target_weights"] = "auto"
    """Short/flat/long (discrete), or a weight of equity each (target_weights); auto: discrete for one asset."""
    allow_short: bool = True
    """Whether positions may be short; borrowing shares is free of charge here."""
    fill_at: FillAt = "next_open"
    """Where an order is filled: at the next bar's open, or (optimistic) at the close it was decided on."""
    fee_bps: float = 5.0
    """Fee on traded value, in basis points (hundredths of a percent), on buying and selling alike."""
    slippage_bps: float = 0.0
    """Half the spread and slippage, in basis points of traded value."""
    initial_cash: float = 10_000.0
    """Money at the start of an episode."""
    train_fraction: float = 0.7
    """Part of the bars to train on, the earliest."""
    validation_fraction: float = 0.15
    """Part of the bars after those, to choose the best checkpoint on; the rest, the latest, is the test split."""
    embargo_bars: int = 0
    """Bars left out between the splits."""
    episode_length: int = 256
    """Bars of a training episode, which begins at a random bar."""

    def __post_init__(self) -> None:
        for name in ("window", "episode_length"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        _require("embargo_bars", self.embargo_bars, self.embargo_bars >= 0, "0 or more")
        for name in ("fee_bps", "slippage_bps"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) <= 1_000, "from 0 to 1000 basis points")
        positive = math.isfinite(self.initial_cash) and self.initial_cash > 0
        _require("initial_cash", self.initial_cash, positive, "positive and finite")
        for name in ("train_fraction", "validation_fraction"):
            _require(name, getattr(self, name), 0 < getattr(self, name) < 1, "between 0 and 1")
        together = self.train_fraction + self.validation_fraction
        _require("train_fraction + validation_fraction", together, together < 1, "less than 1, to leave a test split")
        _require("features", self.features, len(self.features) > 0, "at least one feature")
        for feature in self.features:
            make_features(feature)
        _one_of("action_mode", self.action_mode, ("auto", "discrete", "target_weights"))
        _one_of("fill_at", self.fill_at, ("next_open", "close"))

    def rules(self, n_assets: int) -> TradingRules:
        """What these settings mean for an account of `n_assets`."""
        chosen: ActionMode = "discrete" if n_assets == 1 else "target_weights"
        return TradingRules(
            action_mode=chosen if self.action_mode == "auto" else self.action_mode,
            allow_short=self.allow_short,
            fill_at=self.fill_at,
            fee_bps=self.fee_bps,
            slippage_bps=self.slippage_bps,
            initial_cash=self.initial_cash,
        )


def _require(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise UserError(f"{name} must be {expected}, but got {value}.")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f'{name} must be one of {", ".join(choices)}, but got "{value}".')
