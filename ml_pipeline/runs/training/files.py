"""What a run writes into its folder besides checkpoints: metrics and episodes, settings, warnings."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.monitoring.line_file import read_lines
from ml_pipeline.monitoring.metrics_file import METRICS_FILE, MetricsFile
from ml_pipeline.monitoring.monitor_csv import EPISODES_FILE, MonitorCsv
from ml_pipeline.runs.folder import FEATURE_WARNINGS_FILE, SETTINGS_FILE
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.regular_file import open_regular
from ml_pipeline.runtime.whole_file import written_whole

_MOST_BYTES = 1_000_000


def begin_files(
    folder: Path, config: TrainConfig, task: Task, *, resume_step: int | None
) -> tuple[MetricsFile, MonitorCsv]:
    """Write the settings and the warnings about features, and open the sinks of metrics and episodes.

    Where one fails, those that were not there go.
    resume_step: the global step that a resumed run goes on from; None begins anew.
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
    """Every setting but the folder, which this run has taken: the file may be the --config of other runs."""
    settings = {name: value for name, value in flatten(config).items() if name != "checkpoint_dir"}
    write_yaml(folder / SETTINGS_FILE, settings)


def write_feature_warnings(folder: Path, task: Task) -> None:
    """Write the warnings about the features of a task that has any; an empty list means that none was found.

    Raises UserError where a feature sees ahead.
    """
    warnings = getattr(task, "feature_warnings", None)  # a Gymnasium task, and most of a user's own, have none
    if warnings is not None:
        records = [warning.record() for warning in warnings]
        with written_whole(folder / FEATURE_WARNINGS_FILE, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(records, indent=2) + "\n")


def feature_warnings(folder: Path) -> list[dict[str, Any]]:
    """The records of `FeatureWarning` that a run folder holds; of a run of an older version, or of no market, none.

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
        raise UserError(f"{path} must hold the warnings about features that a run writes, but holds others.")
    return records


def _is_warning(record: object) -> bool:
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(name), str) for name in ("kind", "sentence"))
        and isinstance(record.get("features"), list)
        and isinstance(record.get("is_doubt"), bool)
    )


def last_row_has_other_n_envs(folder: Path, n_envs: int) -> bool:
    """Whether the last iteration was made in another number of environments, as its metrics say."""
    rows = read_lines(folder / METRICS_FILE)
    try:
        return bool(rows) and json.loads(rows[-1]).get("time/n_envs") != n_envs
    except (ValueError, AttributeError):  # a row that somebody wrote: at worst it waits
        return True
