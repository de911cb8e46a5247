"""What a run writes into its folder besides checkpoints: metrics.jsonl, monitor.csv and config.yaml."""

import json
from contextlib import ExitStack
from pathlib import Path

from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.monitoring.line_file import read_lines
from ml_pipeline.monitoring.metrics_file import METRICS_FILE, MetricsFile
from ml_pipeline.monitoring.monitor_csv import EPISODES_FILE, MonitorCsv
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig


def begin_files(
    folder: Path, config: TrainConfig, *, task_name: str, resume_step: int | None
) -> tuple[MetricsFile, MonitorCsv]:
    """Write the settings, and open the sinks of metrics and episodes; where one fails, those that were not there go.

    resume_step: the global step that a resumed run goes on from; None begins anew.
    """
    with ExitStack() as undo:
        for path in (folder / name for name in (METRICS_FILE, EPISODES_FILE, SETTINGS_FILE)):
            if not path.exists():
                undo.callback(path.unlink, missing_ok=True)
        metrics = MetricsFile(folder / METRICS_FILE, resume_step=resume_step)
        undo.callback(metrics.close)
        last_step = None if resume_step is None else metrics.last_step
        episodes = MonitorCsv(folder / EPISODES_FILE, env_id=task_name, resume_step=last_step)
        undo.callback(episodes.close)
        write_settings(folder, config)
        undo.pop_all()
    return metrics, episodes


def write_settings(folder: Path, config: TrainConfig) -> None:
    """Every setting but the folder, which this run has taken: the file may be the --config of other runs."""
    settings = {name: value for name, value in flatten(config).items() if name != "checkpoint_dir"}
    write_yaml(folder / SETTINGS_FILE, settings)


def last_row_has_other_n_envs(folder: Path, n_envs: int) -> bool:
    """Whether the last iteration was made in another number of environments, as its metrics say."""
    rows = read_lines(folder / METRICS_FILE)
    try:
        return bool(rows) and json.loads(rows[-1]).get("time/n_envs") != n_envs
    except (ValueError, AttributeError):  # a row that somebody wrote: at worst it waits
        return True
