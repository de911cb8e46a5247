"""From a checkpoint to a report: rebuilds task and policy as they were saved, and lets the one act in the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.settings import build
from ml_pipeline.evaluate_config import EvaluationConfig
from ml_pipeline.gym_task import GymTask
from ml_pipeline.models.rl.core.checkpoint import load_checkpoint
from ml_pipeline.models.rl.networks.policy import Policy
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.train_config import TrainConfig
from ml_pipeline.training import BEST_CHECKPOINT, make_policy, report_folder

# Settings of the market that an evaluation may change.
_OF_MARKET = ("initial_cash", "fee_bps", "fixed_fee", "slippage_bps", "borrow_bps_per_year")


def run_evaluation(evaluation: EvaluationConfig) -> None:
    """Print the verdict on a checkpoint and write its report.

    Raises UserError where the checkpoint, the data or the folder cannot be used.
    """
    saved = load_checkpoint(evaluation.checkpoint)
    config = build(TrainConfig, convert_settings(saved["config"], TrainConfig, source=evaluation.checkpoint))
    folder = evaluation.output_dir or _default_folder(evaluation)
    if config.run.env_id is None:
        verdict = _judge_trading(evaluation, config, saved, folder)
    else:
        verdict = _judge_episodes(evaluation, config, saved, folder)
    print(f"{verdict}\n\nWritten to {folder}")


def _judge_trading(evaluation: EvaluationConfig, config: TrainConfig, saved: dict[str, Any], folder: Path) -> str:
    if evaluation.eval_episodes is not None:
        raise UserError("--eval-episodes is for environments that are no market; a market is passed through once.")
    trading = config.trading if evaluation.data is None else replace(config.trading, data=evaluation.data, symbols=())
    changes = {name: value for name in _OF_MARKET if (value := getattr(evaluation, name)) is not None}
    if "fee_bps" in changes:
        changes["sell_fee_bps"] = None
    task = TradingTask.from_state(saved["task"], replace(trading, **changes), config.run.seed)
    for notice in task.notices:
        print(notice)
    split = evaluation.split or ("test" if evaluation.data is None else "all")
    env = task.evaluation_env(split)
    policy = restore_policy(config, env, saved)
    with report_folder(folder):
        return str(task.evaluate(policy.act, split, folder, page=True, certify=evaluation.certify)["table"])


def _judge_episodes(evaluation: EvaluationConfig, config: TrainConfig, saved: dict[str, Any], folder: Path) -> str:
    run = config.run
    assert run.env_id is not None
    of_market = [name for name in ("data", "split", *_OF_MARKET) if getattr(evaluation, name) is not None]
    if of_market or evaluation.certify:
        flag = flag_of(of_market[0]) if of_market else "--certify"
        raise UserError(f"This checkpoint is of {run.env_id}, which is no market: {flag} says nothing here.")
    task = GymTask(run.env_id, eval_episodes=evaluation.eval_episodes or run.eval_episodes, seed=run.seed)
    env = task.evaluation_env()
    policy = restore_policy(config, env, saved)
    env.close()
    with report_folder(folder):
        return task.report(policy.act, folder)


def restore_policy(config: TrainConfig, env: Any, saved: dict[str, Any]) -> Policy:
    """The policy of a checkpoint, to act in `env`. Raises UserError where it was made for something else."""
    policy = make_policy(config, env.observation_space, env.action_space, device="cpu")
    policy.load_state_dict(saved["trainer"]["policy"])
    return policy


def _default_folder(evaluation: EvaluationConfig) -> Path:
    """The run's own for what a run itself reports; any other evaluation has one of its own in it and spoils nothing."""
    run, checkpoint = evaluation.checkpoint.parent, evaluation.checkpoint
    special = [] if checkpoint.name == BEST_CHECKPOINT else [checkpoint.stem]
    if evaluation.data is not None:
        special.append(evaluation.data.name)
    if evaluation.split is not None:
        special.append(evaluation.split)
    for name in _OF_MARKET:
        if getattr(evaluation, name) is not None:
            special.append(f"{name}-{getattr(evaluation, name):g}")
    return run / "-".join(["evaluation", *special]) if special else run
