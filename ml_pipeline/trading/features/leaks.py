"""Checks the features in use for look-ahead, on the data in use.

1. A feature is computed three times: with every bar after some t changed, and without them; up to t it keeps its bits.
2. A user's function is also run on the bars so far, where it can reach no others: see `causality_check`.
3. Columns of the data, and functions that may have later bars from elsewhere, may not tell more of bars to come than
   what is known at their bar can: see `foresight`, `period_ends` and `later_figures`. Functions that 1 and 2 have shown
   to see no later bars, and built-in features, are not measured; if the past of the market predicts it, a warning says
   so.
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

# So many bars before and after a bar are tested with it, and more where features need more to warm up: a test takes no
# longer for more bars.
_REACH = 20_000
# Bars whose relation to features is measured at once.
_MOST_AT_ONCE = 524_288
_FEWEST_BARS = 60
# Fraction of the variance of returns that the past explains; of real markets it is 0.04 at most.
_PREDICTABLE = 0.15
# Files that are named.
_MOST_NAMED = 5


@dataclass(frozen=True)
class FeatureWarning:
    """A doubt about features that no test could settle.

    kind: "later bars": they tell more of what comes than honest features do; "files": they read files, the network or
    other programs, which may hold later bars; "unchecked": a test was left out, or saw only a part; "predictable": they
    cannot hold later bars, but the market can be predicted by them. features: by name, without the symbol.
    accepted: why the user trusts them all the same, by `accept_feature`; None: not accepted.
    """

    kind: Literal["later bars", "files", "unchecked", "predictable"]
    features: tuple[str, ...]
    sentence: str
    accepted: str | None = None

    @property
    def is_doubt(self) -> bool:
        """Whether results may be wrong by it: it is about later bars or files, and not accepted."""
        return self.kind in {"later bars", "files"} and self.accepted is None

    def record(self) -> dict[str, Any]:
        """As JSON has it: kind, features, sentence, accepted and is_doubt."""
        return {**asdict(self), "features": [*self.features], "is_doubt": self.is_doubt}


def check_features(
    market: MarketData,
    names: Sequence[str],
    table: FeatureTable,
    *,
    accepted: Mapping[str, str] | None = None,
    n_samples: int = 3,
) -> tuple[FeatureWarning, ...]:
    """Warnings about features that may see ahead. `table` holds the features `names` of `market`.

    accepted: reasons by the name of a feature: what is measured of it is then a warning, never an error.
    Raises UserError, with its name, about a feature that does see ahead.
    """
    accepted = accepted or {}
    _require_observed(accepted, market, table)
    generator = np.random.default_rng(0)
    for t in generator.integers(table.first_bar, market.n_bars - 1, n_samples):
        part, its_table, its_t = _around(market, names, table, int(t))
        changed = with_future_changed(part, its_t, generator)
        _refuse_different(part, its_table, its_t, compute_features(changed, names), "changes with")
        cut = compute_features(part.bars(0, its_t + 1), names)
        _refuse_different(part, its_table, its_t, cut, "is another without")
    functions = [name for name in names if is_function(name)]
    alone = [name for name in functions if runs_alone(name)]
    warnings, unseen = _about_functions(market, alone, table) if alone else ([], [])
    if more := [name for name in functions if name not in alone]:
        sentence = (
            f"{', '.join(more)} ask for longer bars or for all symbols: look-ahead was looked for on changed and on "
            f"cut data at {n_samples} bars, not where later bars cannot be reached"
        )
        warnings.append(FeatureWarning("unchecked", tuple(more), sentence))
    warnings += _about_foresight(market, table, accepted, {*unseen, *more})
    return tuple(_with_reason(warning, accepted) for warning in warnings)


def _require_observed(accepted: Mapping[str, str], market: MarketData, table: FeatureTable) -> None:
    """Raise UserError about an accepted feature that is none of the table's."""
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
    """(market, its features, t) of the bars around t: as many as features need to warm up there, or all if few."""
    reach = max(_REACH, 4 * table.first_bar)
    if market.n_bars <= 2 * reach:
        return market, table, t
    first = max(0, t - reach)
    part = market.bars(first, t + reach)
    return part, compute_features(part, names), t - first


def _refuse_different(market: MarketData, table: FeatureTable, t: int, other: FeatureTable, how: str) -> None:
    """Refuse a feature whose values up to t are not those of `other`, which was computed from other bars after t."""
    same = _same_bits(table.values[: t + 1], other.values[: t + 1])
    if not same.all():
        row, column = np.argwhere(~same)[0]
        raise UserError(
            f"Feature {table.columns[column]} sees ahead (or is random): its value at {as_text(market.times[row])} "
            f"{how} the bars after {as_text(market.times[t])}; compute it only from each bar and the bars before it."
        )


def _about_functions(
    market: MarketData, functions: Sequence[str], table: FeatureTable
) -> tuple[list[FeatureWarning], list[str]]:
    """Warnings, and the functions that may have later bars from elsewhere."""
    runs = refuse_what_sees_ahead(market, functions, table)
    warnings, unseen = [], []
    named = ", ".join(functions)
    if runs.opened:
        unseen = [*functions]
        shown = ", ".join(runs.opened[:_MOST_NAMED])
        sentence = f"{named} read from {shown}: nothing here can tell whether later bars are in there"
        warnings.append(FeatureWarning("files", tuple(functions), sentence))
    if not runs.watched:
        sentence = (
            f"{named} ran where this system does not tell what native libraries and other programs open: files that "
            "they read are not named"
        )
        warnings.append(FeatureWarning("unchecked", tuple(functions), sentence))
    if not runs.every_bar:
        sentence = f"{named} took too long to be run at every bar; look-ahead was looked for at {runs.n_cuts:,} of them"
        warnings.append(FeatureWarning("unchecked", tuple(functions), sentence))
    return warnings, unseen


def _about_foresight(
    market: MarketData, table: FeatureTable, accepted: Mapping[str, str], unseen: Collection[str]
) -> list[FeatureWarning]:
    """Raise UserError for a column that is impossible without later bars; warnings about unlikely ones.

    unseen: functions that are measured as columns are.
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
                    "bar's return, as of smoothed, averaged or rounded prices; perhaps no trade was made at these"
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
                        f"Feature {symbol}:{name} {found.sentence}, so it was made from later bars; move it forward "
                        "until each value was known when its bar closed, or leave it out. If each was known, "
                        f'--accept-feature {name} "why" trains with it and keeps the reason in the run.'
                    )
                sentence = f"{symbol}:{name} {found.sentence}: was each value known when its bar closed?"
                warnings.setdefault((symbol, name), FeatureWarning("later bars", (name,), sentence))
    return [*warnings.values()]


def _parts(market: MarketData, table: FeatureTable) -> Iterator[tuple[MarketData, FloatArray]]:
    """The bars and their features; of very many the first, those in the middle and the last."""
    if market.n_bars <= _MOST_AT_ONCE:
        yield market, table.values
        return
    size = _MOST_AT_ONCE // 2
    for start in (0, (market.n_bars - size) // 2, market.n_bars - size):
        yield market.bars(start, start + size), table.values[start : start + size]


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
