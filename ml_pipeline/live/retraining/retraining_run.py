"""A retraining, in its own process: train on the bars so far, judge the policy, and deploy it if it is better."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import flatten
from ml_pipeline.live.retraining.bars import add_earlier_bars
from ml_pipeline.live.retraining.task_folder import EARLIER, RUN, SETTINGS, Outcome, RetrainOrder, read_order
from ml_pipeline.monitoring.sinks import METRICS_FILE, read_lines
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.folder_claim import FolderInUse, check_not_written
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig, read_train_settings, train_config
from ml_pipeline.runs.trained.deployed import warned_of
from ml_pipeline.trading.configured_market import load_configured_market
from ml_pipeline.trading.evaluation.baselines import Act
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.promotion.model_store import DeployedMeanwhile, ModelStore, Version
from ml_pipeline.tuning.promotion.verdict import (
    Incumbent,
    NotPromoted,
    PairedDifference,
    PromotionCase,
    PromotionRules,
    SavedPolicy,
    Wording,
    check_promotion,
    checkpoint_digest,
    compare_on_validation,
)
from ml_pipeline.tuning.promotion.version_files import write_version
from ml_pipeline.tuning.study_files import RETURNS_FILE
from ml_pipeline.tuning.study_identity import warnings_of_task
from ml_pipeline.tuning.trials.validation_returns import measure_validation_returns, read_validation_returns
from ml_pipeline.tuning.winner_statistics import JudgedTrial

_SCORE = "eval/score"
_PATIENCE_S, _LOOK_S = 30.0, 0.05
_TEST_BARS = 2
"""A task must have a test split with at least one step; nothing is tested on it."""


class RetrainingTask(TradingTask):
    """A trading task that reports on its validation split, the latest bars, by which a retraining is judged."""

    def report(self, act: Act, folder: Path) -> str:
        return str(self.evaluate(act, "validation", folder, page=True)["summary"])


def retrain(folder: Path) -> Outcome:
    """Start or continue the retraining in a folder. Raises UserError if its input is invalid."""
    order = read_order(folder)
    run = folder / RUN
    config = train_config(read_train_settings(folder / SETTINGS))
    _await_free(run)
    checkpoint = run / LATEST_CHECKPOINT if (run / LATEST_CHECKPOINT).is_file() else None
    if checkpoint is not None:
        config = resumed_config(checkpoint, {})
    else:
        if (folder / EARLIER).is_file():
            earlier = train_config(read_train_settings(folder / EARLIER)).trading
            add_earlier_bars(config.trading, earlier, n_own=order.n_bars or 0, most=order.earlier_bars)
        market = load_configured_market(config.trading)
        trading = walk_forward(config.trading, market, validation=order.validation, n_own=order.n_bars)
        config = replace(config, trading=trading)
    base = make_task(config)
    assert isinstance(base, TradingTask)
    task = RetrainingTask(config.trading, config.run.seed, accounts=base.accounts)
    if not (run / RETURNS_FILE).is_file():
        result = Run(config, task, checkpoint=checkpoint).train()
        if result.status != "finished":
            raise UserError(f"Its run was stopped: {result.reason or 'no reason was given.'}")
        _measure(task, run)
    try:
        version, merits = _promote(order, folder, task)
    except NotPromoted as refusal:
        return Outcome(state="refused", sentence=str(refusal))
    why = "" if merits is None else f" {' '.join(merits.sentences)}"
    return Outcome(state="promoted", sentence=f"{version.name} of {order.name} is deployed.{why}", version=version.name)


def walk_forward(
    trading: TradingConfig, market: MarketData, *, validation: float, n_own: int | None = None
) -> TradingConfig:
    """The settings with splits for training and, up to the end, validation.

    validation: fraction of the usable bars, of which at most n_own are the session's; the current model may have been
    trained on the bars before. The test split gets the two bars that it must have.
    Raises UserError if there are too few bars.
    """
    first = compute_features(market, trading.features).first_bar + trading.window - 1
    usable = market.n_bars - first
    judged = max(_TEST_BARS, round(min(usable, n_own or usable) * validation))
    stop = usable - _TEST_BARS - trading.embargo_bars
    trained = stop - judged - trading.embargo_bars
    if trained < _TEST_BARS:
        raise UserError(
            f"A retraining needs more bars: there are {market.n_bars:,}, of which {min(first, market.n_bars):,} are "
            f"the warm-up of features and window and {judged:,} are for validation; retrain later or less often."
        )
    part = trained / usable
    return replace(trading, train_fraction=part, validation_fraction=stop / usable - part)


def _await_free(run: Path) -> None:
    """Wait for the end of a process that a killed session left behind; it ends by itself.

    Raises FolderInUse if it does not.
    """
    until = time.monotonic() + _PATIENCE_S
    while run.is_dir():
        try:
            return check_not_written(run)
        except FolderInUse:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


def _measure(task: TradingTask, run: Path) -> None:
    """Write the returns per bar of the best policy on the validation bars, as the last step of a run."""
    policy = SavedPolicy(run)
    env = task.evaluation_env("validation")
    try:
        returns = measure_validation_returns(task, policy.act_in(env))
    finally:
        env.close()
    returns.write(run / RETURNS_FILE)


def _promote(order: RetrainOrder, folder: Path, task: TradingTask) -> tuple[Version, PromotionCase | None]:
    """Deploy the run's best policy. Raises NotPromoted, with the figures, if the rules refuse it."""
    run, store = folder / RUN, ModelStore(Path(order.models), order.name)
    digest = checkpoint_digest(run)
    rule = PromotionRules(min_dsr=order.min_dsr, margin=order.margin)
    trial = _judged(run)
    compared: dict[str, PairedDifference] = {}

    def compare(incumbent: Incumbent) -> PairedDifference:
        if incumbent.name not in compared:
            compared[incumbent.name] = compare_on_validation(SavedPolicy(run), SavedPolicy(incumbent.folder))
        return compared[incumbent.name]

    while True:
        number, deployed = store.current, store.deployed()
        if deployed is not None and deployed.promotion.get("files", {}).get(BEST_CHECKPOINT) == digest:
            return deployed, None  # a retraining that was interrupted before it wrote its result
        incumbent = Incumbent(order.incumbent_name, Path(order.incumbent))
        if deployed is not None:
            deployed.require_whole()
            incumbent = Incumbent(deployed.name, deployed.folder)
        wording = Wording("The retrained model", "--retrain-min-dsr", "--retrain-margin")
        merits = check_promotion([trial], trial, rule, incumbent=incumbent, compare=compare, wording=wording)
        before = warned_of(incumbent.folder)
        warned = before._replace(warnings=tuple(dict.fromkeys([*before.warnings, *warnings_of_task(task)])))
        record = {**_origin(order, folder, task, incumbent, trial), **merits.as_json(), **warned.as_json()}
        try:
            version = store.promote(
                lambda made, record=record: record.update(write_version(run, made)),  # type: ignore[misc]
                record,
                instead_of=number,
                session=order.session,
                retraining=order.number,
            )
        except DeployedMeanwhile:  # compare with that version
            continue
        return version, merits


def _judged(run: Path) -> JudgedTrial:
    scores = [float(row[_SCORE]) for row in map(json.loads, read_lines(run / METRICS_FILE)) if _SCORE in row]
    best = load_checkpoint(run / BEST_CHECKPOINT)["best_score"]
    return JudgedTrial(0, float(best), run, read_validation_returns(run), n_checkpoints=max(1, len(scores)))


def _origin(
    order: RetrainOrder, folder: Path, task: TradingTask, incumbent: Incumbent, trial: JudgedTrial
) -> dict[str, Any]:
    market = task.account.market
    bars: Mapping[str, Any] = {"first": str(market.times[0]), "last": str(market.times[-1]), "count": market.n_bars}
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "package_version": order.package_version,
        "session": order.session,
        "retraining": order.number,
        "folder": str(folder),
        "due": order.due,
        "bars": bars,
        "begun_from": order.begin,
        "replaces": incumbent.name,
        "value": trial.value,
    }


def settings_of_retraining(
    model: TrainConfig, trading: TradingConfig, folder: Path, *, begin_with: Path | None, timesteps: int | None
) -> dict[str, Any]:
    """The settings to train with: those of the current model, on these bars, in one process that writes only its run
    folder.

    begin_with: checkpoint with the initial weights; None: random ones. timesteps: None: those of the model.
    """
    length: dict[str, Any] = {}
    if timesteps is not None:
        length = {"total_timesteps": timesteps, "iterations": None, "n_envs_schedule": {}}
    return {
        **flatten(replace(model, trading=trading)),
        **length,
        "init_from": None if begin_with is None else str(begin_with),
        "checkpoint_dir": str(folder / RUN),
        "n_workers": 0 if model.run.vec_env == "parallel" else "auto",
        "parallel_start_method": None,
        "step_timeout_s": None,
        "on_worker_failure": "raise",
        "tensorboard": False,
        "tensorboard_dir": None,
        "wandb": None,
        "sink": [],
        "n_processes": 1,
    }
