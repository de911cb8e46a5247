"""Entry: train anew on each stretch of the past and trade the next one; the out-of-sample equity stitched together.

python -m ml_pipeline.trading.walk_forward --data prices.csv --folds 5 --window expanding --output-dir walk

Features are scaled, and the policy is trained, anew in each fold, on its own past alone.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from ml_pipeline.config.errors import UserError, user_errors_exit
from ml_pipeline.trading.baselines import Act, buy_and_hold, run_policy
from ml_pipeline.trading.features import DEFAULT_FEATURES
from ml_pipeline.trading.ledger import Ledger
from ml_pipeline.trading.market_data import BarTime, FloatArray
from ml_pipeline.trading.metrics import max_drawdown, returns_of, sharpe, total_return
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.splits import walk_forward_folds
from ml_pipeline.trading.task import TradingTask, load_configured_market

_N_ENVS = 16


def main(argv: list[str]) -> int:
    """Print a line for each fold and for the whole; return 0, or exit with code 2 after one sentence."""
    parser = argparse.ArgumentParser(prog="walk_forward", description="Train anew on the past, trade what comes next.")
    parser.add_argument("--data", type=Path, help="market data; without, the built-in market")
    parser.add_argument("--symbols", nargs="+", default=[], help="symbols to trade; without, all there are")
    parser.add_argument("--bar-time", choices=get_args(BarTime), help="whether times are when bars open or close")
    parser.add_argument("--features", nargs="+", default=list(DEFAULT_FEATURES), help="what is seen of each asset")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--window", choices=("rolling", "expanding"), default="rolling", help="what is trained on")
    parser.add_argument("--embargo-bars", type=int, default=0)
    parser.add_argument("--fee-bps", type=float, default=TradingConfig.fee_bps)
    parser.add_argument("--total-timesteps", type=int, default=100_000, help="steps of training in each fold")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, help="folder for walk_forward.csv, the stitched equity")
    arguments = parser.parse_args(argv)
    with user_errors_exit("walk_forward"):
        if arguments.folds < 1:
            raise UserError(f"folds must be 1 or more, but got {arguments.folds}.")
        config = TradingConfig(
            data=arguments.data,
            symbols=tuple(arguments.symbols),
            bar_time=arguments.bar_time,
            features=tuple(arguments.features),
            fee_bps=arguments.fee_bps,
            embargo_bars=arguments.embargo_bars,
        )
        market = load_configured_market(config)
        first_bar = TradingTask(config, market=market).first_bar
        folds = walk_forward_folds(
            first_bar,
            market.n_bars,
            arguments.folds,
            window=arguments.window,
            embargo_bars=arguments.embargo_bars,
            source=market.source,
        )
        agents, holders = [], []
        for k, splits in enumerate(folds):
            task = TradingTask(config, arguments.seed, market=market, splits=splits)
            env = task.evaluation_env("test")
            agents.append(run_policy(env, _trained(task, arguments.total_timesteps, arguments.seed)))
            holders.append(buy_and_hold(env))
            first, last = (str(time)[:10] for time in agents[-1]["time"][[0, -1]])
            print(f"fold {k + 1}, {first} to {last}: {_said(agents[-1:], holders[-1:], task.market.periods_per_year)}")
        print(f"stitched: {_said(agents, holders, market.periods_per_year)}")
        if arguments.output_dir is not None:
            _write(arguments.output_dir, agents, holders)
    return 0


def stitched(ledgers: Sequence[Ledger]) -> FloatArray:
    """The equity of runs that follow one another, each begun with what the one before ended with."""
    equity = ledgers[0]["equity"]
    for ledger in ledgers[1:]:
        equity = np.concatenate([equity, equity[-1] * ledger["equity"][1:] / ledger["equity"][0]])
    return np.asarray(equity)


def _said(agents: Sequence[Ledger], holders: Sequence[Ledger], periods_per_year: float) -> str:
    agent, holder = stitched(agents), stitched(holders)
    ratio = sharpe(returns_of(agent), periods_per_year)
    return (
        f"agent {total_return(agent):+.1%}, buy and hold {total_return(holder):+.1%}; Sharpe "
        f"{'-' if np.isnan(ratio) else f'{ratio:.2f}'}, largest drawdown {max_drawdown(agent):.1%}"
    )


def _trained(task: TradingTask, total_timesteps: int, seed: int) -> Act:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.fitting import fit

    envs = task.batched_train_env(_N_ENVS)
    ppo = replace(PPOConfig(), n_steps=128, n_epochs=4, learning_rate=1e-3)
    return fit(envs, ppo, total_timesteps=total_timesteps, seed=seed).act


def _write(folder: Path, agents: Sequence[Ledger], holders: Sequence[Ledger]) -> None:
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    times = np.concatenate([agents[0]["time"], *(ledger["time"][1:] for ledger in agents[1:])])
    columns = {"time": times, "agent": stitched(agents), "buy_and_hold": stitched(holders)}
    pl.DataFrame(columns).write_csv(folder / "walk_forward.csv", datetime_format="%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
