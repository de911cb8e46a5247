"""Recognize results that are too good to be true, and name the feature that they depend on most.

The usual cause is a feature that uses later data, or prices at which no trade was possible.
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

# The best known funds keep a Sharpe ratio of 2 to 3 after costs for years; 4 on bars has always been a mistake. The
# ratio counts only if it exceeds that of holding the same assets by at least OWN_SHARPE.
LARGEST_SHARPE = 4.0
OWN_SHARPE = 2.0
# Profitable forecasts of the next bar are right in 51 to 55 of 100 cases.
LARGEST_HIT_RATE = 0.65
# Trend followers reach 1.5 to 2.5, an agent on the planted trend of the built-in market 3.
LARGEST_PROFIT_FACTOR = 10.0
# Chance exceeds this many standard errors once in 700 times. A figure within them is reported as possible luck.
STANDARD_ERRORS = 3.0
# With fewer observations, a figure beyond its bound may be luck, and a report warns of their number.
FEW_TRADES = 30
FEW_BARS = 100
# Most bars over which the policy is run again without each feature.
_MOST_BARS = 2_000


@dataclass(frozen=True)
class Missed:
    """Total returns over `n_bars` with every feature, and without the most important one.

    feature: None if the result depends on no single feature.
    """

    feature: str | None
    with_it: float
    without_it: float
    n_bars: int


@dataclass(frozen=True)
class ImplausibleResult:
    """A result that is too good to be true.

    findings: phrases with a figure and its bound. uncertain: figures that luck over few observations may explain, each
    with its range. missed: None if the features are unknown.
    """

    findings: tuple[str, ...]
    uncertain: tuple[str, ...] = ()
    missed: Missed | None = None

    def sentence(self) -> str:
        """A sentence for the report."""
        causes = "a feature that uses later data, wrong prices, or training bars in the evaluation"
        what = ", ".join(self.findings) or f"{', '.join(self.uncertain)}; with so few observations it may be luck"
        if self.findings and self.uncertain:
            what += f"; perhaps by luck, {', '.join(self.uncertain)}"
        start = f"Implausible: {what}. Look for {causes}"
        if self.missed is None:
            return f"{start}."
        missed = self.missed
        over = f"over {counted(missed.n_bars, 'bar')}"
        if missed.feature is None:
            return f"{start}; {over}, the policy earns as much without any single feature."
        return (
            f"{start}: without {missed.feature} the policy earns {missed.without_it:+,.1%} instead of "
            f"{missed.with_it:+,.1%} {over}."
        )


class Run(NamedTuple):
    """The run to judge: a ledger, its trades, and the equity of holding the same assets.

    profits: of the trades, as fractions of the equity before each was opened; in money, late trades of an account that
    grew a thousandfold would outweigh all others.
    """

    ledger: Ledger
    profits: Sequence[float]
    held_equity: FloatArray
    periods_per_year: float

    @classmethod
    def of(cls, agent: Ledger, holder: Ledger, rules: TradingRules, periods_per_year: float) -> "Run":
        """The run of an agent; `holder` may continue after its end."""
        held_equity = holder["equity"][: len(agent["time"])]
        return cls(agent, relative_profits(agent, periods_per_year, rules), held_equity, periods_per_year)


class _Finding(NamedTuple):
    phrase: str
    is_certain: bool


def implausible_result(run: Run) -> ImplausibleResult | None:
    """The figures beyond their bounds; None if there are none, or if the run lost money."""
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
    """The Sharpe ratio of daily returns if there are enough days, otherwise of the bars."""
    times, equity = run.ledger["time"], run.ledger["equity"]
    if len(times) < FEWEST_BARS:
        return None
    by_day = n_days(times) >= FEWEST_BARS
    ratio_of = daily_sharpe if by_day else _bars_sharpe
    ratio, error = ratio_of(times, equity, run.periods_per_year)
    held, _ = ratio_of(times[: len(run.held_equity)], run.held_equity, run.periods_per_year)
    own = ratio - max(0.0 if np.isnan(held) else held, 0.0)
    if not (ratio > max(LARGEST_SHARPE, error) and own > OWN_SHARPE):  # within one error of zero it means nothing
        return None
    returns = "daily returns" if by_day else "the bars' returns"
    phrase = f"a Sharpe ratio of {ratio:.1f} ± {error:.1f} of {returns} (above {LARGEST_SHARPE:g})"
    return _Finding(phrase, bool(ratio > STANDARD_ERRORS * error))


def most_missed_feature(
    env: StatefulTradingEnv, act: Act, columns: Mapping[str, Sequence[int]], *, most_bars: int = _MOST_BARS
) -> Missed:
    """Run the policy again with each feature held at its mean, and name the one without which it earns least.

    columns: the columns of each feature by name; a feature of several assets is held for all of them. most_bars: the
    runs cover this many first bars of `env`.
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
    """The columns of each feature by its name without the asset: one per asset, or one for all assets."""
    n_own, n_of_assets = table.n_asset_features, table.n_asset_features * len(symbols)
    own = [name.removeprefix(f"{symbols[0]}:") for name in table.columns[:n_own]]
    return {name: list(range(i, n_of_assets, n_own)) for i, name in enumerate(own)} | {
        name: [n_of_assets + i] for i, name in enumerate(table.columns[n_of_assets:])
    }


def daily_sharpe(times: NDArray[np.datetime64], equity: FloatArray, periods_per_year: float) -> tuple[float, float]:
    """(Sharpe ratio, its standard error) of daily returns, annualized; of bar returns if bars are a day or longer.

    The return of a day starts from the last equity of the previous day.
    """
    days = times.astype("datetime64[D]")
    lasts = np.flatnonzero(np.append(days[1:] != days[:-1], True))
    per_year = periods_per_year * len(lasts) / len(days)
    returns = metrics.returns_of(np.concatenate([equity[:1], equity[lasts[lasts > 0]]]))
    return metrics.sharpe(returns, per_year), sharpe_standard_error(returns, per_year)


def n_days(times: NDArray[np.datetime64]) -> int:
    """The number of days with bars."""
    return len(np.unique(times.astype("datetime64[D]")))


def _bars_sharpe(times: NDArray[np.datetime64], equity: FloatArray, periods_per_year: float) -> tuple[float, float]:
    returns = metrics.returns_of(equity)
    return metrics.sharpe(returns, periods_per_year), sharpe_standard_error(returns, periods_per_year)


def _trades_won_beyond(profits: Sequence[float]) -> _Finding | None:
    n = len(profits)
    return None if n < FEWEST_TRADES else _hits_beyond(metrics.win_rate(profits), n, "trades won", FEW_TRADES)


def _bars_gained_beyond(run: Run) -> _Finding | None:
    """The share of bars with a gain, compared with holding, which also gains in most bars if prices rise steadily."""
    rate, n = metrics.bar_hit_rate(run.ledger)
    changes = np.diff(run.held_equity)
    held = float((changes[changes != 0] > 0).mean()) if changes.any() else 0.5
    if n < FEWEST_BARS:
        return None
    return _hits_beyond(rate, n, "bars in the market gained", FEW_BARS, by_luck=max(held, 0.5))


def _hits_beyond(rate: float, n: int, what: str, few: int, by_luck: float = 0.5) -> _Finding | None:
    """A share too far above one half, or above holding's; it is certain if chance does not explain it."""
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
    """The implausible result of `run`, made by `act` in `env`, or None. columns: as in `most_missed_feature`."""
    result = implausible_result(run)
    return result if result is None or not columns else replace(result, missed=most_missed_feature(env, act, columns))
