"""From a checkpoint to a report: restores task and policy as saved, and runs the policy in the task."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.wording import shown_path
from ml_pipeline.runs.folder import BEST_CHECKPOINT, report_folder
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.configs import EvaluationStart
from ml_pipeline.runs.trained.deployed import EVALUATIONS_FOLDER, is_version_folder
from ml_pipeline.runs.trained.restore import find_policy, load_run, restore_policy
from ml_pipeline.trading.evaluation.looks import LOOKED_AT, Look, looks_in_words, read_looks
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.trained_state import under_conditions


@dataclass(frozen=True)
class EvaluationReport:
    """The verdict on a checkpoint, in words, and the folder of its files.

    notices: sentences on findings in the data.
    """

    text: str
    folder: Path
    notices: tuple[str, ...] = ()


def evaluate_checkpoint(start: EvaluationStart) -> EvaluationReport:
    """Run the policy of a checkpoint, or the best of a run folder, in a single environment, and write the report.

    Raises UserError if the checkpoint, the data or the folder are unusable, and CertificationFailed if another
    engine computes a different equity.
    """
    start = replace(start, config=replace(start.config, checkpoint=find_policy(start.config.checkpoint)))
    config, saved = load_run(start.config.checkpoint)
    folder = start.config.output_dir or _default_folder(start)
    evaluate = _evaluate_trading if config.run.env_id is None else _evaluate_episodes
    report = evaluate(start, config, saved, folder)
    with report_folder(folder):
        write_report_heading(folder, start.config.checkpoint.parent)
    return report


def _evaluate_trading(
    start: EvaluationStart, config: TrainConfig, saved: dict[str, Any], folder: Path
) -> EvaluationReport:
    if start.config.eval_episodes is not None:
        raise UserError("--eval-episodes is for Gymnasium environments; a market is evaluated in one pass.")
    trading = under_conditions(config.trading, start.changes)
    task = TradingTask.from_state(saved["task"], trading, config.run.seed)
    split = start.config.split or ("all" if "data" in start.changes else "test")
    with closing(task.evaluation_env(split)) as env:
        # Warn before the policy uses look-ahead features.
        notices = (*task.notices, *task.about_training(split))
        policy = restore_policy(config, env, saved, start.config.checkpoint)
    with report_folder(folder), policy.acting_threads():
        run = start.config.checkpoint.parent
        look = Look(
            f"evaluate of {shown_path(start.config.checkpoint)}", beside=None if is_version_folder(run) else run
        )
        figures = task.evaluate(policy.act, split, folder, page=True, certify=start.config.certify, look=look)
    looks = [looks_in_words(read_looks(task.fingerprints, [run]))] if split in LOOKED_AT else []
    return EvaluationReport("\n\n".join([str(figures["table"]), *looks]), folder, notices)


def _evaluate_episodes(
    start: EvaluationStart, config: TrainConfig, saved: dict[str, Any], folder: Path
) -> EvaluationReport:
    run, asked = config.run, start.config
    assert run.env_id is not None
    of_market = [*start.changes, *(name for name in ("split", "certify") if getattr(asked, name))]
    if of_market:
        raise UserError(
            f"This checkpoint is of {run.env_id}, but {flag_of(of_market[0])} is for markets; leave it out."
        )
    task = GymTask.of(run, eval_episodes=asked.eval_episodes)
    with closing(task.evaluation_env()) as env:
        policy = restore_policy(config, env, saved, start.config.checkpoint)
    with report_folder(folder), policy.acting_threads():
        return EvaluationReport(task.report(policy.act, folder), folder)


def _default_folder(start: EvaluationStart) -> Path:
    """The run folder for the run's own report; any other evaluation gets its own folder in it.

    A version of a deployed model never changes: its evaluations go into evaluations/ next to it.
    """
    run, checkpoint = start.config.checkpoint.parent, start.config.checkpoint
    changes = dict(start.changes)
    special = [] if checkpoint.name == BEST_CHECKPOINT else [checkpoint.stem]
    if "data" in changes:
        data = changes.pop("data")
        special.append("built-in" if data is None else data.name)
    if start.config.split is not None:
        special.append(start.config.split)
    special += [f"{name}-{_as_name(value)}" for name, value in changes.items()]
    if is_version_folder(run):
        return run.parent / EVALUATIONS_FOLDER / "-".join([run.name, *special])
    return run / "-".join(["evaluation", *special]) if special else run


def _as_name(value: Any) -> str:
    """A setting as part of a folder's name."""
    name = "+".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
    return name.replace("/", "-")
