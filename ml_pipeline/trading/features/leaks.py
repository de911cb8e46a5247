"""Checks the features in use for look-ahead, on the data in use.

A feature is computed twice, the second time with every bar after some t changed; up to t it must keep its bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features.indicators import FeatureTable, compute_features
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData, as_text

# A column that correlates more than this with the next bar's return was made from it.
_SUSPICIOUS_CORRELATION = 0.9
_FEWEST_FOR_CORRELATION = 30


def refuse_leaks(market: MarketData, names: Sequence[str], table: FeatureTable, *, n_samples: int = 3) -> None:
    """Raise UserError, with its name, if a feature sees ahead. `table` holds the features `names` of `market`.
    Changing later bars cannot reveal that a column of the data was made from them. So a column that nearly equals the
    next bar's return is refused as well.
    """
    generator = np.random.default_rng(0)
    for t in generator.integers(table.first_bar, market.n_bars - 1, n_samples):
        changed = compute_features(with_future_changed(market, int(t), generator), names)
        same = _same_bits(table.values[: t + 1], changed.values[: t + 1])
        if not same.all():
            row, column = np.argwhere(~same)[0]
            raise UserError(
                f"Feature {table.columns[column]} sees ahead (or is random): its value at "
                f"{as_text(market.times[row])} changes with the bars after {as_text(market.times[t])}; compute it only "
                "from each bar and the bars before it."
            )
    for name in market.columns:
        if name in names or f"{FEATURE_PREFIX}*" in names:
            _refuse_next_return(market, name)


def with_future_changed(market: MarketData, t: int, generator: np.random.Generator) -> MarketData:
    """The market with other prices, volumes, quotes and columns in the bars after t."""

    def changed(values: FloatArray) -> FloatArray:
        values = values.copy()
        values[t + 1 :] *= generator.uniform(0.2, 5.0, values[t + 1 :].shape)
        return values

    arrays: dict[str, Any] = {
        name: changed(getattr(market, name)) for name in ("open", "high", "low", "close", "volume")
    }
    columns = {name: changed(values) for name, values in market.columns.items()}
    spread = None if market.half_spread is None else changed(market.half_spread)
    return replace(market, **arrays, columns=columns, half_spread=spread)


def _same_bits(one: FloatArray, other: FloatArray) -> Any:
    return one.view(np.int64) == other.view(np.int64)


def _refuse_next_return(market: MarketData, name: str) -> None:
    """Refuse a column that equals the next return, or grows by it, as the next close does."""
    for a, symbol in enumerate(market.symbols):
        own = market.tradable[:, a]
        values, returns = market.columns[name][own, a][:-1], np.diff(np.log(market.close[own, a]))
        for what, told in (("Column", values), ("The growth of", np.diff(values, prepend=np.nan))):
            correlation = _correlation(told, returns)
            if abs(correlation) > _SUSPICIOUS_CORRELATION:
                raise UserError(
                    f"{what} {name} of {symbol} correlates {correlation:.2f} with the return of the next bar, so it "
                    "was made from later bars; move it forward by one bar, or leave it out."
                )


def _correlation(values: FloatArray, returns: FloatArray) -> float:
    """The correlation of both; 0 if there are too few values, or one of them does not vary."""
    known = np.isfinite(values)
    values, returns = values[known], returns[known]
    if len(values) < _FEWEST_FOR_CORRELATION or not (values.std() > 0 and returns.std() > 0):
        return 0.0
    return float(np.corrcoef(values, returns)[0, 1])
