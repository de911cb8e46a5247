"""Check the features in use for look-ahead, on the data in use.

1. A feature is computed again with changed bars after some t, and without them; its values up to t must not change.
2. A user's function is also run in a process that has no later bars: see `causality_check`.
3. Columns of the data, and functions that may get later bars from elsewhere, must not predict later bars better than
   information at their bar can: see `foresight`, `period_ends` and `later_figures`. Built-in features, and functions
   that pass 1 and 2, are not measured. A warning reports a market whose past predicts it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.trading.features.causality_check import refuse_what_sees_ahead
from ml_pipeline.trading.features.foresight import foresight
from ml_pipeline.trading.features.indicators import FeatureTable, bars_of, compute_features, is_function, runs_alone
from ml_pipeline.trading.features.innovations import innovations
from ml_pipeline.trading.features.later_figures import LaterFigures
from ml_pipeline.trading.features.period_ends import periods_of, told_of_period
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.times import as_text

# Bars before and after a sampled bar that are tested with it, or more if features need a longer warm-up. It bounds the
# time of a test.
_REACH = 20_000
# Most bars that are measured at once.
_MOST_AT_ONCE = 524_288
_FEWEST_BARS = 60
# Fraction of the variance of returns explained by the past above which a market is predictable; in real markets at most
# 0.04 was seen.
_PREDICTABLE = 0.15
# Most files that a message names.
_MOST_NAMED = 5


@dataclass(frozen=True)
class FeatureWarning:
    """A doubt about features that no test could settle.

    kind: "later bars": they predict later bars better than honest features do; "files": they read files, the network
    or other programs, which may hold later bars; "unchecked": a test was left out or covered only a part;
    "predictable": the past of the market predicts it. features: names without the symbol.
    accepted: the user's reason from `accept_feature`; None: not accepted.
    """

    kind: Literal["later bars", "files", "unchecked", "predictable"]
    features: tuple[str, ...]
    sentence: str
    accepted: str | None = None

    @property
    def is_doubt(self) -> bool:
        """Whether results may be wrong because of it: it concerns later bars or files, and is not accepted."""
        return self.kind in {"later bars", "files"} and self.accepted is None

    def record(self) -> dict[str, Any]:
        """A JSON object: kind, features, sentence, accepted and is_doubt."""
        return {**asdict(self), "features": [*self.features], "is_doubt": self.is_doubt}


def check_features(
    market: MarketData,
    names: Sequence[str],
    table: FeatureTable,
    *,
    accepted: Mapping[str, str] | None = None,
    n_samples: int = 3,
) -> tuple[FeatureWarning, ...]:
    """Warnings about features that may use later data. `table` holds the features `names` of `market`.

    accepted: reasons by feature name; measurements of such a feature are warnings and never errors.
    Raises UserError, with its name, about a feature that uses later data.
    """
    accepted = accepted or {}
    _require_observed(accepted, market, table)
    generator = np.random.default_rng(0)
    for t in generator.integers(table.first_bar, market.n_bars - 1, n_samples):
        part, its_table, its_t = _around(market, names, table, int(t))
        changed = with_future_changed(part, its_t, generator)
        _refuse_different(part, its_table, its_t, compute_features(changed, names), "changes with")
        cut = compute_features(part.bars(0, its_t + 1), names)
        _refuse_different(part, its_table, its_t, cut, "is different without")
    functions = [name for name in names if is_function(name)]
    alone = [name for name in functions if runs_alone(name)]
    warnings, unseen = _about_functions(market, alone, table) if alone else ([], [])
    if more := [name for name in functions if name not in alone]:
        sentence = (
            f"{', '.join(more)} use longer bars or all symbols, so they were checked for look-ahead with changed and "
            f"truncated data at {n_samples} bars, and not in a process without later bars"
        )
        warnings.append(FeatureWarning("unchecked", tuple(more), sentence))
    warnings += _about_foresight(market, table, accepted, {*unseen, *more})
    return tuple(_with_reason(warning, accepted) for warning in warnings)


def _require_observed(accepted: Mapping[str, str], market: MarketData, table: FeatureTable) -> None:
    """Raise UserError about an accepted feature that is not observed."""
    observed = {column.removeprefix(f"{symbol}:") for column in table.columns for symbol in market.symbols}
    for name in accepted:
        if name not in observed:
            raise UserError(f'accept_feature names "{name}", which is not observed. {nearest(name, sorted(observed))}')


def _with_reason(warning: FeatureWarning, accepted: Mapping[str, str]) -> FeatureWarning:
    """The warning with the user's reason, if all of its features are accepted."""
    if not all(name in accepted for name in warning.features):
        return warning
    reason = "; ".join(dict.fromkeys(accepted[name] for name in warning.features))
    return replace(warning, sentence=f'{warning.sentence} Accepted: "{reason}".', accepted=reason)


def _around(
    market: MarketData, names: Sequence[str], table: FeatureTable, t: int
) -> tuple[MarketData, FeatureTable, int]:
    """(market, its features, t) of the bars around t: enough for the warm-up of features, or all if there are few."""
    reach = max(_REACH, 4 * table.first_bar)
    if market.n_bars <= 2 * reach:
        return market, table, t
    first = max(0, t - reach)
    part = market.bars(first, t + reach)
    return part, compute_features(part, names), t - first


def _refuse_different(market: MarketData, table: FeatureTable, t: int, other: FeatureTable, how: str) -> None:
    """Refuse a feature whose values up to t differ from `other`, which was computed from different bars after t."""
    same = _same_bits(table.values[: t + 1], other.values[: t + 1])
    if not same.all():
        row, column = np.argwhere(~same)[0]
        raise UserError(
            f"Feature {table.columns[column]} uses later data (or is random): its value at "
            f"{as_text(market.times[row])} {how} the bars after {as_text(market.times[t])}; compute it only from each "
            "bar and earlier bars."
        )


def _about_functions(
    market: MarketData, functions: Sequence[str], table: FeatureTable
) -> tuple[list[FeatureWarning], list[str]]:
    """Warnings, and the functions that may get later bars from elsewhere."""
    runs = refuse_what_sees_ahead(market, functions, table)
    warnings, unseen = [], []
    named = ", ".join(functions)
    if runs.opened:
        unseen = [*functions]
        shown = ", ".join(runs.opened[:_MOST_NAMED])
        sentence = f"{named} read from {shown}, which may contain later bars; no check can exclude it"
        warnings.append(FeatureWarning("files", tuple(functions), sentence))
    if not runs.watched:
        sentence = (
            f"{named} ran on a system that does not report files opened by native libraries and other programs, so "
            "such files are not named"
        )
        warnings.append(FeatureWarning("unchecked", tuple(functions), sentence))
    if not runs.every_bar:
        sentence = f"{named} took too long to run at every bar, so {runs.n_cuts:,} bars were checked for look-ahead"
        warnings.append(FeatureWarning("unchecked", tuple(functions), sentence))
    return warnings, unseen


def _about_foresight(
    market: MarketData, table: FeatureTable, accepted: Mapping[str, str], unseen: Collection[str]
) -> list[FeatureWarning]:
    """Raise UserError for a column that is impossible without later bars; return warnings about unlikely ones.

    unseen: functions that are measured like columns.
    """
    warnings: dict[tuple[str, str], FeatureWarning] = {}
    for part, values in _parts(market, table):
        for a, symbol in enumerate(market.symbols):
            own = part.tradable[:, a]
            if own.sum() < _FEWEST_BARS:
                continue
            columns = range(a * table.n_asset_features, (a + 1) * table.n_asset_features)
            plain = {column: table.columns[column].removeprefix(f"{symbol}:") for column in columns}
            known = innovations(bars_of(part, a))
            if known.explained >= _PREDICTABLE:
                sentence = (
                    f"{symbol} can be predicted: its past explains {known.explained:.0%} of the variance of the next "
                    "bar's return, as in smoothed, averaged or rounded prices, at which trading may be impossible"
                )
                warnings.setdefault((symbol, "predictable"), FeatureWarning("predictable", (), sentence))
            measured = [c for c in columns if plain[c].startswith(FEATURE_PREFIX) or plain[c] in unseen]
            periods = periods_of(known, part.timing) if measured else []
            later = LaterFigures(known, periods)
            for column in measured:
                told, name = values[own, column], plain[column]
                looked = (foresight(told, known), told_of_period(told, known, periods), later.told(told))
                if not (every := [found for found in looked if found]):
                    continue
                found = next((each for each in every if each.impossible), every[0])
                if found.impossible and name not in accepted:
                    raise UserError(
                        f"Feature {symbol}:{name} {found.sentence}, so it was computed from later bars; shift it so "
                        "that each value was known when its bar closed, or leave it out. If each value was known, "
                        f'--accept-feature {name} "why" trains with it and stores the reason in the run.'
                    )
                sentence = f"{symbol}:{name} {found.sentence}: was each value known when its bar closed?"
                warnings.setdefault((symbol, name), FeatureWarning("later bars", (name,), sentence))
    return [*warnings.values()]


def _parts(market: MarketData, table: FeatureTable) -> Iterator[tuple[MarketData, FloatArray]]:
    """The bars and their features; if there are very many, the first, the middle and the last."""
    if market.n_bars <= _MOST_AT_ONCE:
        yield market, table.values
        return
    size = _MOST_AT_ONCE // 2
    for start in (0, (market.n_bars - size) // 2, market.n_bars - size):
        yield market.bars(start, start + size), table.values[start : start + size]


def with_future_changed(market: MarketData, t: int, generator: np.random.Generator) -> MarketData:
    """The market with different prices, volumes, quotes and columns in the bars after t."""

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
