"""Command: train anew on each stretch of the past and trade the next one; the out-of-sample equity stitched together.

python -m ml_pipeline.experiments.walk_forward --data prices.csv --folds 5 --training-window expanding --output-dir walk

Features are scaled, and the policy is trained, anew in each fold, on its own past alone.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.experiments.fit_config import FitConfig
from ml_pipeline.monitoring.console import entry
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.evaluation.baselines import Act, buy_and_hold, run_policy
from ml_pipeline.trading.evaluation.metrics import max_drawdown, returns_of, sharpe, total_return
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.splits import TrainingWindow, walk_forward_folds
from ml_pipeline.trading.settings import TraderConfig, TradingConfig
from ml_pipeline.trading.task import TradingTask, load_configured_market

_N_ENVS = 16


@dataclass(frozen=True, kw_only=True)
class WalkConfig(FitConfig):
    """How far to walk, and how long to train before each step.

    Raises UserError where a value is out of range.
    """

    folds: int = 4
    """How often to train on the past and to trade what comes next."""
    training_window: TrainingWindow = "rolling"
    """Whether a fold is trained on the stretch before it alone (rolling), or on everything before it (expanding)."""
    output_dir: Path | None = None
    """Folder for walk_forward.csv, the stitched equity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("folds", self.folds)
        check_choice("training_window", self.training_window, get_args(TrainingWindow))


@dataclass(frozen=True)
class CommandLine:
    """What the flags fill."""

    walk: WalkConfig = field(default_factory=WalkConfig)
    trading: TraderConfig = field(default_factory=TraderConfig)


def main(argv: list[str], *, prog: str = "walk_forward") -> int:
    """Print a line for each fold and for the whole; return 0, or exit with code 2 after one sentence."""
    with entry(prog):
        settings = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["walk-forward"].sentence)
        walk, config = settings.walk, TradingConfig(**vars(settings.trading))
        market = load_configured_market(config)
        folds = []
        for fold in walk_folds(market, config, walk):
            folds.append(fold)
            first, last = (str(time)[:10] for time in fold.agent["time"][[0, -1]])
            print(f"fold {len(folds)}, {first} to {last}: {_described([fold], market.periods_per_year)}")
        print(f"stitched: {_described(folds, market.periods_per_year)}")
        if walk.output_dir is not None:
            write_equity(walk.output_dir, folds)
    return 0


class Fold(NamedTuple):
    """The ledgers of one stretch that was traded: of the agent trained on its past, and of buying and holding."""

    agent: Ledger
    buy_and_hold: Ledger


def walk_folds(market: MarketData, config: TradingConfig, walk: WalkConfig) -> Iterator[Fold]:
    """Train and trade, one fold after another. Raises UserError where the bars do not suffice for so many."""
    folds = walk_forward_folds(
        TradingTask(config, market=market).first_bar,
        market.n_bars,
        walk.folds,
        window=walk.training_window,
        embargo_bars=config.embargo_bars,
        source=market.source,
    )
    for splits in folds:
        task = TradingTask(config, walk.seed, market=market, splits=splits)
        env = task.evaluation_env("test")
        yield Fold(run_policy(env, _trained(task, walk.total_timesteps, walk.seed)), buy_and_hold(env))


def write_equity(folder: Path, folds: Sequence[Fold]) -> None:
    """Write walk_forward.csv, the stitched equity by time, into a folder, which is made if it is missing."""
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    agents, holders = zip(*folds, strict=True)
    times = np.concatenate([agents[0]["time"], *(ledger["time"][1:] for ledger in agents[1:])])
    columns = {"time": times, "agent": stitched(agents), "buy_and_hold": stitched(holders)}
    pl.DataFrame(columns).write_csv(folder / "walk_forward.csv", datetime_format="%Y-%m-%d %H:%M:%S")


def stitched(ledgers: Sequence[Ledger]) -> FloatArray:
    """The equity of runs that follow one another, each begun with what the one before ended with."""
    equity = ledgers[0]["equity"]
    for ledger in ledgers[1:]:
        equity = np.concatenate([equity, equity[-1] * ledger["equity"][1:] / ledger["equity"][0]])
    return np.asarray(equity)


def _described(folds: Sequence[Fold], periods_per_year: float) -> str:
    agent, holder = (stitched(ledgers) for ledgers in zip(*folds, strict=True))
    ratio = sharpe(returns_of(agent), periods_per_year)
    return (
        f"agent {total_return(agent):+.1%}, buy and hold {total_return(holder):+.1%}; Sharpe "
        f"{'-' if np.isnan(ratio) else f'{ratio:.2f}'}, largest drawdown {max_drawdown(agent):.1%}"
    )


def _trained(task: TradingTask, total_timesteps: int, seed: int) -> Act:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    envs = task.batched_train_env(_N_ENVS)
    ppo = PPOConfig(n_steps=128, n_epochs=4, learning_rate=1e-3)
    return PPOTrainer(envs, ppo, total_timesteps=total_timesteps, seed=seed).train().act


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
