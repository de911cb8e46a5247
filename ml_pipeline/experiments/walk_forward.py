"""Command: train on each window of the past and trade the next one; stitch the out-of-sample equity together.

ml-pipeline walk-forward --data prices.csv --folds 5 --training-window expanding --output-dir walk

Each fold scales the features and trains a new policy on its own past only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.flags import parse_settings
from ml_pipeline.experiments.fit_config import FitConfig
from ml_pipeline.experiments.stitching import closed_at_the_end, stitched_evaluation
from ml_pipeline.monitoring.console import entry
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.runs.folder import report_folder
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.evaluation.baselines import Act
from ml_pipeline.trading.evaluation.looks import Look
from ml_pipeline.trading.evaluation.page import write_page
from ml_pipeline.trading.evaluation.remarks import alarms
from ml_pipeline.trading.evaluation.report import results_table, write_report
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.splits import TrainingWindow, walk_forward_folds
from ml_pipeline.trading.settings import TraderConfig, TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket

_N_ENVS = 16


@dataclass(frozen=True, kw_only=True)
class WalkConfig(FitConfig):
    """Folds of the walk, and how long to train in each.

    Raises UserError if a value is out of range.
    """

    folds: int = 4
    """Number of folds, usually 3 to 10. Each fold trains on a window of the past and trades the bars after it."""
    training_window: TrainingWindow = "rolling"
    """Train each fold on a window of fixed length just before its bars (rolling), or on all bars before them
    (expanding)."""
    output_dir: Path | None = None
    """Folder for report.html, ledger.csv, trades.csv, evaluation.json, equity.png and walk_forward.csv; none: no
    files."""

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
    """Print a line for each fold and for the whole; return 0, or exit with code 2 after an error."""
    with entry(prog):
        settings = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["walk-forward"].sentence)
        walk, config = settings.walk, TradingConfig(**vars(settings.trading))
        market = load_configured_market(config)
        if walk.output_dir is not None:
            with report_folder(walk.output_dir):
                pass  # fail now, not after hours of training
        folds = []
        for fold in walk_folds(market, config, walk):
            folds.append(fold)
            first, last = (str(time)[:10] for time in fold.agent["time"][[0, -1]])
            print(f"fold {len(folds)}, {first} to {last}: {described(fold)}")
        whole, begun = stitched_evaluation(folds, "walk-forward")
        print(f"stitched: {described(whole).splitlines()[0]}", "", results_table(whole), sep="\n")
        if walk.output_dir is not None:
            with report_folder(walk.output_dir):
                write_walk(walk.output_dir, whole, begun)
            print(f"\nWritten to {walk.output_dir}")
    return 0


def walk_folds(market: MarketData, config: TradingConfig, walk: WalkConfig) -> Iterator[Evaluation]:
    """Train and trade, one fold after another. Raises UserError if there are too few bars for all folds."""
    whole = TradedMarket(config, market=market)
    folds = walk_forward_folds(
        whole.first_bar,
        market.n_bars,
        walk.folds,
        window=walk.training_window,
        embargo_bars=config.embargo_bars,
        source=market.source,
    )
    look = Look("walk-forward")  # one for all folds
    for splits in folds:
        task = TradingTask(config, walk.seed, accounts={"": whole.with_splits(splits)})
        yield closed_at_the_end(
            task.compare(_trained(task, walk.total_timesteps, walk.seed), "test", look=look).evaluation
        )


def described(evaluation: Evaluation) -> str:
    """One line on one or several folds, and an indented one per alarm."""
    agent, holder, random = (evaluation.figures[name] for name in ("agent", "buy_and_hold", "random"))
    ratio, error = (f"{agent[name]:.2f}" if np.isfinite(agent[name]) else "-" for name in ("sharpe", "sharpe_se"))
    line = (
        f"agent {agent['total_return']:+.1%}, buy and hold {holder['total_return']:+.1%}, random "
        f"{random['total_return']:+.1%}; Sharpe {ratio if error == '-' else f'{ratio} ± {error}'}, largest drawdown "
        f"{agent['max_drawdown']:.1%}"
    )
    return "\n  ".join([line, *alarms(evaluation)])


def write_walk(folder: Path, whole: Evaluation, begun: Sequence[int]) -> None:
    """Write the report of the stitched folds, which begin at these rows, and their equity in walk_forward.csv."""
    import polars as pl

    write_report(folder, whole)
    note = (
        "Each fold was traded by a policy trained on the bars before it; a grey line marks the start of each fold. "
        "At the end of a fold, all positions, also those of buy and hold, are closed at the close and pay the costs."
    )
    write_page(folder / PAGE_FILE, whole, notes=[note], marked_rows=begun)
    times = whole.agent["time"][: len(whole.buy_and_hold["time"])]
    rows = np.flatnonzero(np.append(times[1:] != times[:-1], True))  # at the end of a fold, the closing row of two
    columns = {
        "time": whole.agent["time"],
        "agent": whole.agent["equity"],
        "buy_and_hold": whole.buy_and_hold["equity"],
    }
    frame = pl.DataFrame({name: values[rows] for name, values in columns.items()})
    frame.write_csv(folder / "walk_forward.csv", datetime_format="%Y-%m-%d %H:%M:%S")


def _trained(task: TradingTask, total_timesteps: int, seed: int) -> Act:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    envs = task.batched_train_env(_N_ENVS)
    ppo = PPOConfig(n_steps=128, n_epochs=4, learning_rate=1e-3)
    return PPOTrainer(envs, ppo, total_timesteps=total_timesteps, seed=seed).train(progress=False).act
