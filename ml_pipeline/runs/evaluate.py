"""From a checkpoint to a report: rebuilds task and policy as they were saved, and lets the one act in the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.settings import build
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.evaluate_config import EvaluationStart
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training import BEST_CHECKPOINT, make_policy, report_folder
from ml_pipeline.trading.task import TradingTask


def run_evaluation(start: EvaluationStart) -> None:
    """Print the verdict on a checkpoint and write its report.

    Raises UserError where the checkpoint, the data or the folder cannot be used.
    """
    config, saved = load_run(start.config.checkpoint)
    folder = start.config.output_dir or _default_folder(start)
    judge = _judge_trading if config.run.env_id is None else _judge_episodes
    print(f"{judge(start, config, saved, folder)}\n\nWritten to {folder}")


def load_run(checkpoint: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings of the run that a checkpoint is of, and all that it holds. Raises UserError where it is no use."""
    saved = load_checkpoint(checkpoint)
    return build(TrainConfig, convert_settings(saved["config"], TrainConfig, source=checkpoint)), saved


def restore_policy(config: TrainConfig, env: Any, saved: dict[str, Any]) -> Policy:
    """The policy of a checkpoint, to act in `env`. Raises UserError where it was made for something else."""
    policy = make_policy(config, env.observation_space, env.action_space, device="cpu")
    policy.load_state_dict(saved["trainer"]["policy"])
    return policy


def _judge_trading(start: EvaluationStart, config: TrainConfig, saved: dict[str, Any], folder: Path) -> str:
    if start.config.eval_episodes is not None:
        raise UserError("--eval-episodes is for environments that are no market; a market is passed through once.")
    of_data: dict[str, Any] = {"symbols": (), "bar_time": None} if "data" in start.changes else {}
    of_fees: dict[str, Any] = {"sell_fee_bps": None} if "fee_bps" in start.changes else {}
    trading = replace(config.trading, **{**of_data, **of_fees, **start.changes})
    task = TradingTask.from_state(saved["task"], trading, config.run.seed)
    for notice in task.notices:
        print(notice)
    split = start.config.split or ("all" if "data" in start.changes else "test")
    env = task.evaluation_env(split)
    task.refuse_leaks()
    policy = restore_policy(config, env, saved)
    with report_folder(folder):
        return str(task.evaluate(policy.act, split, folder, page=True, certify=start.config.certify)["table"])


def _judge_episodes(start: EvaluationStart, config: TrainConfig, saved: dict[str, Any], folder: Path) -> str:
    run, asked = config.run, start.config
    assert run.env_id is not None
    of_market = [*start.changes, *(name for name in ("split", "certify") if getattr(asked, name))]
    if of_market:
        raise UserError(
            f"This checkpoint is of {run.env_id}, which is no market: {flag_of(of_market[0])} says nothing here."
        )
    task = GymTask(run.env_id, eval_episodes=asked.eval_episodes or run.eval_episodes, seed=run.seed)
    env = task.evaluation_env()
    policy = restore_policy(config, env, saved)
    env.close()
    with report_folder(folder):
        return task.report(policy.act, folder)


def _default_folder(start: EvaluationStart) -> Path:
    """The run's own for what a run itself reports; any other evaluation has one of its own in it and spoils nothing."""
    run, checkpoint = start.config.checkpoint.parent, start.config.checkpoint
    changes = dict(start.changes)
    special = [] if checkpoint.name == BEST_CHECKPOINT else [checkpoint.stem]
    if "data" in changes:
        data = changes.pop("data")
        special.append("built-in" if data is None else data.name)
    if start.config.split is not None:
        special.append(start.config.split)
    special += [f"{name}-{_as_name(value)}" for name, value in changes.items()]
    return run / "-".join(["evaluation", *special]) if special else run


def _as_name(value: Any) -> str:
    """A setting as a part of a folder's name."""
    if isinstance(value, tuple):
        return "+".join(value).replace("/", "-")
    return f"{value:g}" if isinstance(value, float) else str(value)
