"""Recognizes results that no honest policy reaches, and names the feature that one most depends on.

Such a result is most often a feature that sees ahead, or prices at which nobody could have traded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation import metrics
from ml_pipeline.trading.evaluation.baselines import Act, run_policy
from ml_pipeline.trading.evaluation.summary import FEWEST_BARS, FEWEST_TRADES, relative_profits
from ml_pipeline.trading.evaluation.uncertainty import (
    profit_factor_interval,
    proportion_interval,
    sharpe_standard_error,
)
from ml_pipeline.trading.features.indicators import FeatureTable
from ml_pipeline.trading.market.data import FloatArray

# The best funds known keep a Sharpe ratio of 2 to 3 after costs for years; 4 on bars has been a mistake every time.
# It counts as the agent's own only where holding the same assets gives at least so much less.
LARGEST_SHARPE = 4.0
OWN_SHARPE = 2.0
# Forecasts of the next bar that earn money are right in 51 to 55 of 100 cases.
LARGEST_HIT_RATE = 0.65
# Trend followers reach 1.5 to 2.5, an agent on the planted trend of the built-in market 3.
LARGEST_PROFIT_FACTOR = 10.0
# Luck reaches so many standard errors once in 700 times. A figure within them is reported as well, as one that may be.
STANDARD_ERRORS = 3.0
# Fewer observations are few: a figure beyond its bound may be luck, and a report warns of them by themselves.
FEW_TRADES = 30
FEW_BARS = 100
# Bars over which the policy is run again without each feature.
_MOST_BARS = 2_000


@dataclass(frozen=True)
class Missed:
    """What a run earned with every feature, and without the one that it misses most, as total returns over `n_bars`.

    feature: None if no single feature is missed.
    """

    feature: str | None
    with_it: float
    without_it: float
    n_bars: int


@dataclass(frozen=True)
class ImplausibleResult:
    """findings: phrases, each a figure and its bound. uncertain: the same of figures that few observations explain as
    well, each with its range. missed: None if the features are not known."""

    findings: tuple[str, ...]
    uncertain: tuple[str, ...] = ()
    missed: Missed | None = None

    def sentence(self) -> str:
        """A sentence for the report."""
        causes = "a feature that sees ahead, wrong prices, or bars that it was trained on"
        what = ", ".join(self.findings) or f"{', '.join(self.uncertain)}; so few observations may be luck"
        if self.findings and self.uncertain:
            what += f"; perhaps by luck, {', '.join(self.uncertain)}"
        start = f"Implausible: {what}. Look for {causes}"
        if self.missed is None:
            return f"{start}."
        missed = self.missed
        over = f"over {counted(missed.n_bars, 'bar')}"
        if missed.feature is None:
            return f"{start}; {over}, the policy earns as much without any one of its features."
        return (
            f"{start}: without {missed.feature} the policy earns {missed.without_it:+,.1%} in place of "
            f"{missed.with_it:+,.1%} {over}."
        )


class Run(NamedTuple):
    """What is judged: a ledger, its trades, and the equity of holding the same assets meanwhile.

    profits: of the trades, each as a fraction of the equity before it was opened: in money, those of an account that
    has grown a thousandfold are all that counts.
    """

    ledger: Ledger
    profits: Sequence[float]
    held_equity: FloatArray
    periods_per_year: float

    @classmethod
    def of(cls, agent: Ledger, holder: Ledger, rules: TradingRules, periods_per_year: float) -> "Run":
        """The run of an agent; `holder` may go on after its end."""
        held_equity = holder["equity"][: len(agent["time"])]
        return cls(agent, relative_profits(agent, periods_per_year, rules), held_equity, periods_per_year)


class _Finding(NamedTuple):
    phrase: str
    is_certain: bool


def implausible_result(run: Run) -> ImplausibleResult | None:
    """The figures beyond their bounds; None if there are none, and for a run that lost money."""
    equity = run.ledger["equity"]
    if not equity[-1] > equity[0]:
        return None
    found = [
        each
        for each in (
            _sharpe_beyond(run),
            _trades_won_beyond(run.profits),
            _bars_gained_beyond(run),
            _factor_beyond(np.asarray(run.profits)),
        )
        if each is not None
    ]
    if not found:
        return None
    certain, uncertain = (tuple(each.phrase for each in found if each.is_certain is kind) for kind in (True, False))
    return ImplausibleResult(certain, uncertain)


def _sharpe_beyond(run: Run) -> _Finding | None:
    """Of daily returns if there are enough days, else of the bars."""
    times, equity = run.ledger["time"], run.ledger["equity"]
    if len(times) < FEWEST_BARS:
        return None
    by_day = n_days(times) >= FEWEST_BARS
    ratio_of = daily_sharpe if by_day else _bars_sharpe
    ratio, error = ratio_of(times, equity, run.periods_per_year)
    held, _ = ratio_of(times[: len(run.held_equity)], run.held_equity, run.periods_per_year)
    own = ratio - max(0.0 if np.isnan(held) else held, 0.0)
    if not (ratio > max(LARGEST_SHARPE, error) and own > OWN_SHARPE):  # within one error of zero it says nothing
        return None
    returns = "daily returns" if by_day else "the bars' returns"
    phrase = f"a Sharpe ratio of {ratio:.1f} ± {error:.1f} of {returns} (above {LARGEST_SHARPE:g})"
    return _Finding(phrase, bool(ratio > STANDARD_ERRORS * error))


def most_missed_feature(
    env: StatefulTradingEnv, act: Act, columns: Mapping[str, Sequence[int]], *, most_bars: int = _MOST_BARS
) -> Missed:
    """Run the policy again with each feature held at its mean, and name the one without which it earns least.

    columns: the columns of a feature in the market's features, by its name; that of several assets is held for all.
    most_bars: the first bars of `env`, over which all these runs go.
    """
    market = env.market.bars(0, min(env.market.n_bars, env.window - 1 + most_bars))

    def earned(features: NDArray[np.float32]) -> float:
        again = StatefulTradingEnv(replace(market, features=features), env.rules, window=env.window)
        return metrics.total_return(run_policy(again, act)["equity"])

    with_it = earned(market.features)
    without = {name: earned(_held_at_mean(market.features, of_feature)) for name, of_feature in columns.items()}
    feature = min(without, key=lambda name: without[name], default=None)
    n_bars = market.n_bars - env.window + 1
    if feature is None or without[feature] >= with_it:
        return Missed(None, with_it, with_it, n_bars)
    return Missed(feature, with_it, without[feature], n_bars)


def columns_by_feature(table: FeatureTable, symbols: Sequence[str]) -> dict[str, list[int]]:
    """The columns of each feature by its name without the asset's: one per asset, or one that all assets share."""
    n_own, n_of_assets = table.n_asset_features, table.n_asset_features * len(symbols)
    own = [name.removeprefix(f"{symbols[0]}:") for name in table.columns[:n_own]]
    return {name: list(range(i, n_of_assets, n_own)) for i, name in enumerate(own)} | {
        name: [n_of_assets + i] for i, name in enumerate(table.columns[n_of_assets:])
    }


def daily_sharpe(times: NDArray[np.datetime64], equity: FloatArray, periods_per_year: float) -> tuple[float, float]:
    """(Sharpe ratio, its standard error) of daily returns, annualized; of the bars' returns if a bar is a day or more.

    A day's return runs from the last equity of the day before.
    """
    days = times.astype("datetime64[D]")
    lasts = np.flatnonzero(np.append(days[1:] != days[:-1], True))
    per_year = periods_per_year * len(lasts) / len(days)
    returns = metrics.returns_of(np.concatenate([equity[:1], equity[lasts[lasts > 0]]]))
    return metrics.sharpe(returns, per_year), sharpe_standard_error(returns, per_year)


def n_days(times: NDArray[np.datetime64]) -> int:
    """How many days the bars touch."""
    return len(np.unique(times.astype("datetime64[D]")))


def _bars_sharpe(times: NDArray[np.datetime64], equity: FloatArray, periods_per_year: float) -> tuple[float, float]:
    returns = metrics.returns_of(equity)
    return metrics.sharpe(returns, periods_per_year), sharpe_standard_error(returns, periods_per_year)


def _trades_won_beyond(profits: Sequence[float]) -> _Finding | None:
    n = len(profits)
    return None if n < FEWEST_TRADES else _hits_beyond(metrics.win_rate(profits), n, "trades won", FEW_TRADES)


def _bars_gained_beyond(run: Run) -> _Finding | None:
    """Beside holding: where prices rise steadily, it gains in most bars too."""
    rate, n = metrics.bar_hit_rate(run.ledger)
    changes = np.diff(run.held_equity)
    held = float((changes[changes != 0] > 0).mean()) if changes.any() else 0.5
    if n < FEWEST_BARS:
        return None
    return _hits_beyond(rate, n, "bars in the market gained", FEW_BARS, by_luck=max(held, 0.5))


def _hits_beyond(rate: float, n: int, what: str, few: int, by_luck: float = 0.5) -> _Finding | None:
    """A share too far above one half, or what holding has: certain if luck would not bring it there."""
    largest = by_luck + LARGEST_HIT_RATE - 0.5
    if not rate > largest:
        return None
    if n >= few and rate > by_luck + STANDARD_ERRORS * 0.5 / np.sqrt(n):
        return _Finding(f"{rate:.1%} of {n:,} {what} (above {largest:.0%})", True)
    low, high = proportion_interval(rate, n)
    return _Finding(f"{rate:.1%} of {n:,} {what} ({low:.0%} to {high:.0%}; above {largest:.0%})", False)


def _factor_beyond(profits: FloatArray) -> _Finding | None:
    factor, n = metrics.profit_factor(profits), len(profits)
    if n < FEWEST_TRADES or not factor > LARGEST_PROFIT_FACTOR:
        return None
    over = f"a profit factor of {factor:,.1f} over {counted(n, 'trade')}"
    if n >= FEW_TRADES:
        return _Finding(f"{over} (above {LARGEST_PROFIT_FACTOR:g})", True)
    low, high = profit_factor_interval(profits)
    between = "" if np.isnan(low) else f"{low:,.1f} to {high:,.1f}; "
    return _Finding(f"{over} ({between}above {LARGEST_PROFIT_FACTOR:g})", False)


def _held_at_mean(features: NDArray[np.float32], columns: Sequence[int]) -> NDArray[np.float32]:
    held = features.copy()
    held[:, columns] = held[:, columns].mean(axis=0)
    return held


def judge(
    env: StatefulTradingEnv, act: Act, run: Run, columns: Mapping[str, Sequence[int]] | None = None
) -> ImplausibleResult | None:
    """What is implausible in `run`, made by `act` in `env`, or None. columns: as `most_missed_feature`."""
    result = implausible_result(run)
    return result if result is None or not columns else replace(result, missed=most_missed_feature(env, act, columns))
