"""The records of a run: how it began and ended, run.log, metrics and episodes, settings, sinks."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.env_schedule import planned_end
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.models.rl.algorithms.trainer import Trainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.listener import (
    LOG_FILE,
    LoggedListener,
    RunEnd,
    RunListener,
    RunLog,
    RunStart,
    closing_entry,
)
from ml_pipeline.monitoring.sinks import EPISODES_FILE, METRICS_FILE, MetricsFile, MetricsSink, MonitorCsv, read_lines
from ml_pipeline.monitoring.trackers import (
    EVENTS_FOLDER,
    TensorBoardSink,
    ThreadedSink,
    WandbSink,
    require_tensorboard,
    require_wandb,
)
from ml_pipeline.runs.folder import FEATURE_WARNINGS_FILE, SETTINGS_FILE
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training.env_scaling import EnvScaling
from ml_pipeline.runtime.files import open_regular, written_whole
from ml_pipeline.runtime.user_code import call_user_code, import_by_name

_WANDB_CLOSE_S = 60.0  # unsent data goes over the network


Ended = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    scores: evaluation scores of this call, by environment steps. best_score: the highest of the whole run; None before
    the first evaluation. report: the result in words. report_path: its JSON file, next to the other report files. Both
    are None if the run did not finish; report_path also if the task writes none. error: the cause of a failure.
    """

    folder: Path
    status: Ended
    reason: str | None
    """Why it stopped, failed, or finished before all iterations."""
    global_step: int
    iterations: int
    best_score: float | None
    scores: Mapping[int, float]
    report: str | None = None
    report_path: Path | None = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        score = "no score yet" if self.best_score is None else f"best score {self.best_score:,.4g}"
        reason = "" if self.reason is None else f", {' '.join(self.reason.split())!r}"
        return f"{type(self).__name__}({self.status} in {self.folder}, step {self.global_step:,}, {score}{reason})"


class Recording:
    """Logs the events of a run; `listener` also forwards them. Writes nothing before the run is accepted."""

    def __init__(self, config: TrainConfig, folder: Path, listener: RunListener) -> None:
        """Raises UserError if a sink is unavailable: its extra is missing, or the user's class fails."""
        self._log = RunLog(folder / LOG_FILE)
        self.listener = LoggedListener(listener, self._log)
        self.sinks = _sinks_of(config, folder, self.listener.say)

    def trained(self, status: Literal["finished", "stopped"]) -> None:
        """Record that training is over; the report of a finished run comes next."""
        self._log.write(f"Training is {'finished' if status == 'finished' else 'stopped'} and saved.")

    def end(self, result: RunResult) -> None:
        """Record how the run ended, and close the sinks; waits for a hanging sink up to its timeout."""
        end = RunEnd(result.status, result.reason, result.global_step, result.best_score, result.folder)
        self._log.write(closing_entry(end))
        for sink in self.sinks:
            sink.ended(end)
        self.close()

    def close(self) -> None:
        """Close the sinks and the log; may be called twice."""
        for sink in self.sinks:
            sink.close()
        self._log.close()


def _sinks_of(config: TrainConfig, folder: Path, say: Callable[[str], None]) -> list[ThreadedSink]:
    run, settings = config.run, flatten(config)
    sinks = []
    if run.tensorboard or run.tensorboard_dir is not None:
        require_tensorboard()
        events = folder / EVENTS_FOLDER if run.tensorboard_dir is None else run.tensorboard_dir / folder.name
        sinks.append(ThreadedSink("TensorBoard", partial(TensorBoardSink, events, settings), say=say))
    if run.wandb is not None:
        require_wandb()
        open_sink = partial(WandbSink, run.wandb, folder, settings)
        sinks.append(ThreadedSink("wandb", open_sink, say=say, close_timeout_s=_WANDB_CLOSE_S))
    for name in run.sink:
        own = _own_sink(name, folder, settings)
        sinks.append(ThreadedSink(name, partial(_same, own), say=say, opens_unwritten=True))
    return sinks


def _own_sink(name: str, folder: Path, settings: Mapping[str, Any]) -> MetricsSink:
    """The user's class, called with the run folder and the settings. Raises UserError, with the user's line."""
    sink_class = import_by_name(name)
    if not callable(sink_class):
        raise UserError(f"sink {name} must be a class, but is a {type(sink_class).__name__}.")
    sink = call_user_code(name, lambda folder: sink_class(folder, dict(settings)), folder)
    for method in ("write", "close"):
        if not callable(getattr(sink, method, None)):
            raise UserError(f"sink {name} has no method {method}; a sink has write(metrics, episodes) and close().")
    return sink


def _same(sink: MetricsSink) -> MetricsSink:
    return sink


_MOST_BYTES = 1_000_000


def begin_files(
    folder: Path, config: TrainConfig, task: Task, *, resume_step: int | None
) -> tuple[MetricsFile, MonitorCsv]:
    """Write the settings and the warnings about features, and open the sinks of metrics and episodes.

    If one fails, the new files are removed.
    resume_step: the global step that a resumed run continues from; None for a new run.
    """
    with ExitStack() as undo:
        for path in (folder / name for name in (METRICS_FILE, EPISODES_FILE, SETTINGS_FILE, FEATURE_WARNINGS_FILE)):
            if not path.exists():
                undo.callback(path.unlink, missing_ok=True)
        metrics = MetricsFile(folder / METRICS_FILE, resume_step=resume_step)
        undo.callback(metrics.close)
        last_step = None if resume_step is None else metrics.last_step
        episodes = MonitorCsv(folder / EPISODES_FILE, env_id=task.name, resume_step=last_step)
        undo.callback(episodes.close)
        write_settings(folder, config)
        write_feature_warnings(folder, task)
        undo.pop_all()
    return metrics, episodes


def write_settings(folder: Path, config: TrainConfig) -> None:
    """Write all settings but the folder, so that the file can be the --config of other runs."""
    settings = {name: value for name, value in flatten(config).items() if name != "checkpoint_dir"}
    write_yaml(folder / SETTINGS_FILE, settings)


def write_feature_warnings(folder: Path, task: Task) -> None:
    """Write the warnings about a task's features, if it has features; an empty list means no warnings.

    Raises UserError if a feature uses later data.
    """
    warnings = getattr(task, "feature_warnings", None)  # Gymnasium tasks and most custom tasks have none
    if warnings is not None:
        records = [warning.record() for warning in warnings]
        with written_whole(folder / FEATURE_WARNINGS_FILE, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(records, indent=2) + "\n")


def feature_warnings(folder: Path) -> list[dict[str, Any]]:
    """The `FeatureWarning` records in a run folder; empty if the run is not of a market.

    Raises UserError if the file cannot be read.
    """
    path = folder / FEATURE_WARNINGS_FILE
    try:
        with open_regular(path) as file:
            records = json.loads(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {in_one_line(str(error))}.") from error
    if not isinstance(records, list) or not all(_is_warning(record) for record in records):
        raise UserError(f"{path} must hold the feature warnings of a run, but holds something else.")
    return records


def _is_warning(record: object) -> bool:
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(name), str) for name in ("kind", "sentence"))
        and isinstance(record.get("features"), list)
        and isinstance(record.get("is_doubt"), bool)
    )


def last_row_has_other_n_envs(folder: Path, n_envs: int) -> bool:
    """Whether the last iteration used another number of environments, according to its metrics."""
    rows = read_lines(folder / METRICS_FILE)
    try:
        return bool(rows) and json.loads(rows[-1]).get("time/n_envs") != n_envs
    except (ValueError, AttributeError):  # an edited row: at worst, a request waits
        return True


def run_start(folder: Path, trainer: Trainer, scaling: EnvScaling, *, n_ranks: int) -> RunStart:
    """The start event of the run. scaling: has its environments and current settings."""
    parallel = scaling.envs if isinstance(scaling.envs, ParallelEnv) else None
    total_iterations, total_steps = _planned_length(trainer, scaling)
    run, n_steps = scaling.config.run, scaling.config.ppo.n_steps
    episodes = None if run.n_envs_schedule else run.iterations
    has_workers = parallel is not None and parallel.num_workers > 0
    return RunStart(
        folder=folder,
        n_envs=scaling.n_envs,
        n_workers=parallel.num_workers if parallel else 0,
        start_method=parallel.start_method if parallel else None,
        total_iterations=total_iterations,
        total_steps=total_steps,
        first_step=trainer.global_step,
        n_envs_schedule=run.n_envs_schedule,
        n_ranks=n_ranks,
        one_env_steps=None if episodes is None else episodes * n_steps,
        unused_start_method=None if has_workers else run.parallel_start_method,
    )


def opening_sentences(trainer: Trainer, resumed_from: Mapping[str, Any] | None) -> Iterator[str]:
    """Where the run continues, and which state it could not restore. resumed_from: a loaded checkpoint."""
    if resumed_from is not None:
        yield f"Resuming after iteration {trainer.iteration}, step {trainer.global_step:,}."
        if trainer.finished:
            yield (
                "All steps are done, so nothing is trained; to train further, add --total-timesteps N, with N above "
                f"{trainer.global_step:,}."
            )
        state = resumed_from["trainer"]
        if state["environments"] is None:
            yield f"The environments start new episodes: {state['environments_missing']}"
    yield from getattr(trainer, "notices", ())


def _planned_length(trainer: Trainer, scaling: EnvScaling) -> tuple[int, int]:
    """The iteration and global step at which training ends, including planned changes of n_envs."""
    run, n_steps = scaling.config.run, scaling.config.ppo.n_steps
    left = trainer.total_iterations - trainer.iteration
    if not run.n_envs_schedule or left <= 0:
        return trainer.total_iterations, trainer.total_timesteps
    start = trainer.total_timesteps - left * scaling.n_envs * n_steps  # of the next iteration
    more, end = planned_end(
        run.timesteps(n_steps),
        step=start,
        n_steps=n_steps,
        n_envs=run.n_envs_at(start),
        schedule=run.n_envs_schedule,
    )
    return trainer.iteration + more, end
