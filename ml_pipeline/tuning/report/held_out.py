"""A trial's best policy on data that no trial saw: the test split, or fresh episodes of a Gymnasium environment."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.runs.folder import BEST_CHECKPOINT, refuse_links, report_folder
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import load_run, restore_policy
from ml_pipeline.trading.evaluation.looks import Look
from ml_pipeline.trading.symbols_task import SymbolsTask, trading_task_from_state
from ml_pipeline.trading.task import TradingTask

FEWEST_EPISODES = 30
"""Of a Gymnasium environment; a trial's own number of evaluation episodes where that is larger."""
# Environment i of a trial begins with seed + i, episode k of its evaluations with seed + 1,000,000 + k, and of these
# with seed + 2,000,000 + k.
_HELD_OUT_SEED_OFFSET = 1_000_000

HeldOut = Literal["the test split", "fresh episodes"]


@dataclass(frozen=True, eq=False)
class HeldOutTest:
    """A loaded policy and the task to try it in; nothing was evaluated yet.

    checkpoint: SHA-256 of the file. run: evaluates, writes a report into a folder, and returns the figures; the look is
    written down.
    """

    what: HeldOut
    checkpoint: str
    run: Callable[[Path, Look], Mapping[str, Any]]


def held_out_test(run_folder: Path) -> HeldOutTest:
    """Load the best policy of a trial's run folder, and the market or environment that it was trained in.

    Raises UserError where one of them cannot be used: the data were moved, or the folder is on another machine.
    """
    path = run_folder / BEST_CHECKPOINT
    if not path.is_file():
        raise UserError(f"{path} is not there; write the report on the machine that has this trial's folder.")
    refuse_links(run_folder)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    config, saved = load_run(path)
    if config.run.env_id is not None:
        gym_task = GymTask.of(config.run, eval_episodes=max(config.run.eval_episodes, FEWEST_EPISODES))
        gym_task = gym_task.with_seed(config.run.seed + _HELD_OUT_SEED_OFFSET)
        with closing(gym_task.evaluation_env()) as env:
            act = restore_policy(config, env, saved, path).act
        return HeldOutTest("fresh episodes", digest, lambda folder, look: _play(gym_task, act, folder, run_folder))
    task = _trading_task(config, saved)
    with closing(task.evaluation_env("test")) as env:
        act = restore_policy(config, env, saved, path).act
    return HeldOutTest("the test split", digest, lambda folder, look: _trade(task, act, folder, look, run_folder))


def _trading_task(config: TrainConfig, saved: Mapping[str, Any]) -> TradingTask | SymbolsTask:
    task = trading_task_from_state(saved["task"], config.trading, config.run.seed)
    _ = task.notices  # raises where a feature sees ahead
    return task


def _trade(
    task: TradingTask | SymbolsTask, act: Callable[[Any], Any], folder: Path, look: Look, run_folder: Path
) -> Mapping[str, Any]:
    with report_folder(folder):
        figures = task.evaluate(act, "test", folder, page=True, look=look)
        write_report_heading(folder, run_folder)
    names = ("return", "total_return", "sharpe", "sharpe_se", "max_drawdown", "n_trades")
    return {
        **{name: _finite(figures["agent"][name]) for name in names},
        "buy_and_hold_total_return": _finite(figures["buy_and_hold"]["total_return"]),
        "buy_and_hold_sharpe": _finite(figures["buy_and_hold"]["sharpe"]),
        "random_total_return": _finite(figures["random"]["total_return"]),
    }


def _play(task: GymTask, act: Callable[[Any], Any], folder: Path, run_folder: Path) -> Mapping[str, Any]:
    with report_folder(folder):
        task.report(act, folder)
        write_report_heading(folder, run_folder)
    returns = json.loads((folder / EVALUATION_FILE).read_text(encoding="utf-8"))["returns"]
    n, mean = len(returns), math.fsum(returns) / len(returns)
    variance = math.fsum((each - mean) ** 2 for each in returns) / max(n - 1, 1)
    return {"mean_return": mean, "mean_return_se": math.sqrt(variance / n), "episodes": n}


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
