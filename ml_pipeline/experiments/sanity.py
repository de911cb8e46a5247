"""Command: checks that training finds real signals and nothing else, with three small agents, in under 3 minutes.

ml-pipeline sanity
ml-pipeline sanity --data prices.csv --features rsi_14 my_features:mine --fee-bps 10

1. An agent with the next bar's return as a feature must get rich: learning works, and orders are filled as intended.
2. An agent on the unchanged data must beat guessing after costs on the built-in market. On yours it may find nothing.
3. An agent on shuffled returns must earn nothing: if it does, a feature leaks the future. Data columns and your
   functions move with the bar after them, so that a feature computed from the next bar still leaks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.experiments.fit_config import FitConfig
from ml_pipeline.monitoring.console import entry
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.features.indicators import compute_features, is_function
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket

_N_ENVS = 16
# Required fraction of the profit possible with perfect foresight of every next return.
_RICH = 0.6
# An agent on shuffled returns may be lucky by up to this many standard deviations.
_LUCK = 3.0
_NO_COSTS: dict[str, Any] = {
    "fee_bps": 0.0,
    "sell_fee_bps": None,
    "fixed_fee": 0.0,
    "slippage_bps": 0.0,
    "borrow_bps_per_year": 0.0,
}


class Verdict(NamedTuple):
    """The result of one check, and whether it passed; None: neither passed nor failed."""

    passed: bool | None
    sentence: str

    @property
    def line(self) -> str:
        """For the terminal."""
        return f"{'--  ' if self.passed is None else 'ok  ' if self.passed else 'FAIL'} {self.sentence}"


@dataclass(frozen=True, kw_only=True)
class SanityConfig(FitConfig):
    """How to train the three agents."""

    total_timesteps: int = 120_000
    """Environment steps of each training."""


@dataclass(frozen=True)
class CommandLine:
    """What the flags fill."""

    sanity: SanityConfig = field(default_factory=SanityConfig)
    trading: TradingConfig = field(default_factory=TradingConfig)


def main(argv: list[str], *, prog: str = "sanity") -> int:
    """Print one line per check; return 1 if one failed, else 0."""
    with entry(prog):
        settings = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["sanity"].sentence)
        passed = True
        for verdict in run_checks(settings.trading, settings.sanity):
            print(verdict.line, flush=True)
            passed &= verdict.passed is not False
    return 0 if passed else 1


def run_checks(config: TradingConfig, sanity: SanityConfig) -> Iterator[Verdict]:
    """Train and judge the three agents, one after another.

    Raises UserError, before the first, if the market is unusable or unsuitable for training.
    """
    market = load_configured_market(config)
    TradedMarket(config, market=market).require_trainable()
    for check in (given_the_next_return, as_it_is, shuffled):
        yield check(market, config, sanity.total_timesteps, sanity.seed)


def given_the_next_return(market: MarketData, config: TradingConfig, steps: int, seed: int) -> Verdict:
    """A feature holds the next bar's return, and orders are filled at the close of their decision, without costs or
    limits, because those of `config` might leave no profit."""
    returns = np.diff(np.log(market.close), axis=0, append=np.nan)
    knowing = replace(market, columns={"feature_next_return": np.nan_to_num(returns)}, half_spread=None)
    config = TradingConfig(
        **_NO_COSTS,
        features=("feature_next_return",),
        fill_at="close",
        train_fraction=config.train_fraction,
        validation_fraction=config.validation_fraction,
    )
    task = TradingTask(config, seed, market=knowing)
    test = task.account.split("test")
    known = np.nan_to_num(returns[test.start : test.stop - 1])
    possible = float(np.abs(known).sum() / len(market.symbols))
    result = _trained(task, steps, seed)
    agent = result["agent"]["return"]
    return Verdict(
        agent > _RICH * possible,
        f"given the next bar's return: {_times(agent)} the start, against {_holding(result)}; equal parts of every "
        f"asset could have made {_times(possible)}",
    )


def as_it_is(market: MarketData, config: TradingConfig, steps: int, seed: int) -> Verdict:
    """The data and costs unchanged: on the built-in market the agent must beat guessing, and make a profit.

    On other data it passes without a profit, or with less than holding: they may not allow more.
    """
    result = _trained(TradingTask(config, seed, market=market), steps, seed)
    agent, guess, holding = (result[name]["return"] for name in ("agent", "random", "buy_and_hold"))
    found = (
        f"on {market.source}: {_times(agent)} the start after costs, against {_holding(result)} and {_times(guess)} "
        "by guessing"
    )
    pays, beats_holding = agent > max(guess, 0.0), agent > holding
    if pays and not beats_holding:
        found += "; holding made more"
    if config.data is None or (pays and beats_holding):
        return Verdict(pays, found)
    return Verdict(None, found if pays else f"{found}; found nothing profitable in these data")


def shuffled(market: MarketData, config: TradingConfig, steps: int, seed: int) -> Verdict:
    """The same bars in another order, without costs: only look-ahead can earn, and costs cannot hide it."""
    market, features = with_functions_as_columns(market, config.features)
    config = replace(config, **_NO_COSTS, features=features)
    task = TradingTask(config, seed, market=with_returns_shuffled(market, np.random.default_rng(seed)))
    result = _trained(task, steps, seed)
    agent = result["agent"]["return"]
    luck = _LUCK * result["agent"]["volatility"] * np.sqrt(task.account.split("test").n_bars / market.periods_per_year)
    holding = max(result["buy_and_hold"]["return"], 0.0)  # any long position earns the drift
    told = [name for name in config.features if name.startswith(FEATURE_PREFIX)]
    suspects = f"; {', '.join(told)} may be computed from later bars" if told else ""
    passed = not agent > holding + luck
    return Verdict(
        passed,
        f"on shuffled returns: {_times(agent)} the start, against {_holding(result)}; luck alone gives up to "
        f"{_times(holding + luck)}"
        f"{'' if passed else suspects}",
    )


def with_functions_as_columns(market: MarketData, features: Sequence[str]) -> tuple[MarketData, tuple[str, ...]]:
    """The market with the values of the user's functions as data columns, and the features under their new names.

    On shuffled bars, a function that reads a file or keeps state would return values of other bars.
    """
    columns = dict(market.columns)
    names = []
    for name in features:
        if not is_function(name):
            names.append(name)
            continue
        column = FEATURE_PREFIX + name.replace(":", ".")
        columns[column] = np.nan_to_num(compute_features(market, [name]).values)
        names.append(column)
    return replace(market, columns=columns), tuple(names)


def with_returns_shuffled(market: MarketData, generator: np.random.Generator) -> MarketData:
    """The market with its bars, relative to the previous close, in another order, the same for all assets.

    Columns move with the bar that followed them. Quotes are dropped, because spreads cost.
    """
    order = np.concatenate([[0], 1 + generator.permutation(market.n_bars - 1)])
    before = np.vstack([market.close[:1], market.close[:-1]])
    before = np.where(np.isnan(before), market.open, before)
    steps = np.nan_to_num(np.log(market.close / before))[order]
    start = np.nanmean(market.close, axis=0)
    close = start * np.exp(np.cumsum(steps, axis=0))
    last = np.vstack([close[:1], close[:-1]])
    shape: dict[str, Any] = {
        name: last * np.nan_to_num(getattr(market, name) / before, nan=1.0)[order] for name in ("open", "high", "low")
    }
    shape["open"][0] = shape["high"][0] = shape["low"][0] = close[0]
    before_bars = np.append(order[1:] - 1, order[-1])
    columns = {name: np.nan_to_num(values[before_bars]) for name, values in market.columns.items()}
    tradable = np.ones_like(market.tradable)
    return replace(
        market,
        close=close,
        volume=market.volume[order],
        tradable=tradable,
        columns=columns,
        half_spread=None,
        outside=None,
        source=f"{market.source}, shuffled",
        **shape,
    )


def _trained(task: TradingTask, steps: int, seed: int) -> dict[str, Any]:
    """Results of an agent trained on the task, without a leak check."""
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    traded = task.account
    envs = BatchedTradingEnv(traded.bars_of("train"), _N_ENVS, traded.rules, **traded.training_settings())
    ppo = PPOConfig(n_steps=128, minibatch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.9, hidden_sizes=(32, 32))
    return task.evaluate(PPOTrainer(envs, ppo, total_timesteps=steps, seed=seed).train(progress=False).act)


def _holding(figures: Mapping[str, Mapping[str, float]]) -> str:
    return f"{_times(figures['buy_and_hold']['return'])} by holding"


def _times(log_return: float) -> str:
    multiple = float(np.exp(np.clip(np.nan_to_num(log_return, nan=-np.inf), -20, 200)))
    return f"{multiple:,.2f} times" if multiple < 1e4 else f"10^{np.log10(multiple):.0f} times"
