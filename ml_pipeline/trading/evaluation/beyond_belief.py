"""Recognizes a result that no honest policy reaches, and names the feature that it most depends on.

Such a result is most often a feature that sees ahead, or prices at which nobody could have traded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation import metrics
from ml_pipeline.trading.evaluation.baselines import Act, run_policy
from ml_pipeline.trading.evaluation.summary import relative_profits
from ml_pipeline.trading.evaluation.uncertainty import sharpe_standard_error
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
# What luck reaches once in 700 times does not count.
STANDARD_ERRORS = 3.0
FEWEST_TRADES = 30
FEWEST_BARS = 100
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
class BeyondBelief:
    """findings: phrases, each a figure and its bound. missed: None if the features are not known."""

    findings: tuple[str, ...]
    missed: Missed | None = None

    def sentence(self) -> str:
        """A sentence for the report."""
        causes = "a feature that sees ahead, wrong prices, or bars that it was trained on"
        start = f"Beyond belief: {', '.join(self.findings)}. Look for {causes}"
        if self.missed is None:
            return f"{start}."
        missed = self.missed
        over = f"over {missed.n_bars:,} bars"
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


def findings_of(run: Run) -> tuple[str, ...]:
    """A phrase for each figure beyond its bound; none for a run that lost money."""
    equity = run.ledger["equity"]
    if not equity[-1] > equity[0]:
        return ()
    found = [
        sharpe_beyond_belief(run.ledger["time"], equity, run.held_equity, run.periods_per_year),
        _hits_beyond(metrics.win_rate(run.profits), len(run.profits), "trades won", FEWEST_TRADES),
        _hits_beyond(*metrics.bar_hit_rate(run.ledger), "bars in the market gained", FEWEST_BARS),
    ]
    factor = metrics.profit_factor(run.profits)
    if len(run.profits) >= FEWEST_TRADES and factor > LARGEST_PROFIT_FACTOR:
        found.append(
            f"a profit factor of {factor:,.1f} over {len(run.profits):,} trades (above {LARGEST_PROFIT_FACTOR:g})"
        )
    return tuple(phrase for phrase in found if phrase is not None)


def sharpe_beyond_belief(
    times: NDArray[np.datetime64], equity: FloatArray, held_equity: FloatArray, periods_per_year: float
) -> str | None:
    """A phrase about the Sharpe ratio of daily returns if no honest policy reaches it, else None."""
    ratio, error = daily_sharpe(times, equity, periods_per_year)
    held, _ = daily_sharpe(times[: len(held_equity)], held_equity, periods_per_year)
    own = ratio - max(0.0 if np.isnan(held) else held, 0.0)
    if not (ratio > LARGEST_SHARPE and ratio > STANDARD_ERRORS * error and own > OWN_SHARPE):
        return None
    return f"a Sharpe ratio of {ratio:.1f} ± {error:.1f} of daily returns (above {LARGEST_SHARPE:g})"


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


def _hits_beyond(rate: float, n: int, what: str, fewest: int) -> str | None:
    """A phrase if the rate is above its bound, and further above one half than luck would bring it."""
    if n < fewest or not rate > max(LARGEST_HIT_RATE, 0.5 + STANDARD_ERRORS * 0.5 / np.sqrt(n)):
        return None
    return f"{rate:.1%} of {n:,} {what} (above {LARGEST_HIT_RATE:.0%})"


def _held_at_mean(features: NDArray[np.float32], columns: Sequence[int]) -> NDArray[np.float32]:
    held = features.copy()
    held[:, columns] = held[:, columns].mean(axis=0)
    return held


def judge(
    env: StatefulTradingEnv, act: Act, run: Run, columns: Mapping[str, Sequence[int]] | None = None
) -> BeyondBelief | None:
    """What is beyond belief in `run`, made by `act` in `env`, or None. columns: as `most_missed_feature`."""
    if not (findings := findings_of(run)):
        return None
    return BeyondBelief(findings, most_missed_feature(env, act, columns) if columns else None)
