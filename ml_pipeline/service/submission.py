"""Checks of requests to the service: settings before they are queued, and whether a run can be resumed."""

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.settings import flatten
from ml_pipeline.jobs.budget import need_of
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.folder_claim import check_not_written
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.train_config import TrainConfig, layered, read_train_settings, train_config, train_settings_of
from ml_pipeline.runtime.files import path_inside
from ml_pipeline.service.agent_config import VectorizedEnvConfig
from ml_pipeline.service.store import QueuedRun
from ml_pipeline.trading.market.symbol_files import files_of

Settings = TrainConfig | Mapping[str, Any] | Path | str
MOST_PRIORITY = 1_000_000
MOST_RESTARTS = 1_000_000
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=,-]{0,120}")


def submitted_config(settings: Settings, *, working_directory: Path | None = None) -> TrainConfig:
    """The settings of one run, from a TrainConfig, settings by name (flat or in sections), or a settings file.

    working_directory: from which relative paths in a mapping are resolved. Raises UserError if a name is unknown, a
    value is invalid, or a file does not exist.
    """
    if isinstance(settings, TrainConfig):
        config = settings
    elif isinstance(settings, Mapping):
        vectorized = settings.get("vectorized")
        if isinstance(vectorized, VectorizedEnvConfig):
            settings = {**settings, "vectorized": vectorized.given()}
        config = train_config(layered(train_settings_of(settings, Path("the settings"))))
    else:
        config = train_config(layered(read_train_settings(as_path("settings", settings))))
    data = config.trading.data
    if data is not None and working_directory is not None:
        data = working_directory / data
        config = replace(config, trading=replace(config.trading, data=data))
    if config.run.checkpoint_dir is not None:
        raise UserError(
            f"checkpoint_dir is {config.run.checkpoint_dir}, but the service makes a folder for each run in its root; "
            "leave it out."
        )
    if data is not None and config.run.env_id is None:
        files_of(data)
    return config


def flat_settings(config: TrainConfig) -> dict[str, Any]:
    """All settings by name except checkpoint_dir, as in the queue and in config.yaml."""
    return {name: value for name, value in flatten(config).items() if name != "checkpoint_dir"}


def check_within_limit(settings: Mapping[str, Any], max_concurrent_envs: int | None) -> None:
    """Raise UserError if a run needs more environments than the limit of the service."""
    envs = int(need_of(settings).envs)
    name = "n_envs" if envs == settings.get("n_envs") else "the largest number of n_envs_schedule"
    if max_concurrent_envs is not None and envs > max_concurrent_envs:
        raise UserError(
            f"{name} is {envs}, but this service runs at most {max_concurrent_envs} environments at once; lower "
            f"{name}, or start the service with --max-concurrent-envs {envs} or more."
        )


def new_run_id(config: TrainConfig) -> str:
    """A unique id for a run: its task, its seed, the time, and six random characters.

    >>> from ml_pipeline.config.run import RunConfig
    >>> new_run_id(TrainConfig(run=RunConfig(env_id="CartPole-v1", seed=3))).startswith("CartPole-v1-seed3-")
    True
    """
    run, trading = config.run, config.trading
    if run.env_id is not None:
        task = run.env_id
    elif trading.symbols and len(trading.symbols) == 1:
        (task,) = trading.symbols
    else:
        task = "trading" if trading.data is None else trading.data.name.partition(".")[0]
    task = re.sub(r"[^A-Za-z0-9._-]+", "-", task).strip("-.")[:60] or "run"
    return f"{task}-seed{run.seed}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def check_run_id(id: str) -> None:
    """Raise UserError unless this is a valid name of a run folder."""
    if not isinstance(id, str) or not _RUN_ID.fullmatch(id):
        got = f'"{id[:130]}"' if isinstance(id, str) else excerpt(repr(id), 100)
        raise UserError(
            f'The id of a run must consist of letters, digits and "._+@=,-", and begin with a letter or digit, but got '
            f"{got}."
        )


def require_name(run: str) -> None:
    """Raise UserError if the id of a run is not a string."""
    if not isinstance(run, str):
        raise UserError(f"The id of a run must be a string, but got {excerpt(repr(run), 100)}.")


def check_order(priority: int, restarts: int) -> None:
    """Raise UserError unless both are integers within their ranges."""
    check_count("priority", priority, minimum=-MOST_PRIORITY)
    check_count("restarts", restarts, minimum=0)
    for name, value, most in (("priority", priority, MOST_PRIORITY), ("restarts", restarts, MOST_RESTARTS)):
        if value > most:
            raise UserError(f"{name} must be at most {most:,}, but got {excerpt(str(value), 100)}.")


def as_path(name: str, value: Path | str) -> Path:
    """A path from a caller. Raises UserError if it is not a path."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        expected = "a TrainConfig, settings by name, or the path of a file" if name == "settings" else "a path"
        raise UserError(f"{name} must be {expected}, but got {excerpt(repr(value), 100)}.")
    return Path(value)


def known_run(root: Path, name: str) -> QueuedRun:
    """A run of the root that is not in the queue, as a stopped run. Raises UserError if there is none."""
    folder = path_inside(root, name)
    if folder is None or not (folder / SETTINGS_FILE).is_file():
        raise UserError(f'There is no run "{name}" in {root}; `ml-pipeline status` lists the runs.')
    check_not_written(folder)
    config = train_config(layered(read_train_settings(folder / SETTINGS_FILE)))
    return QueuedRun(
        id=name, status="stopped", settings=flat_settings(config), changes={}, folder_of_work=str(Path.cwd())
    )


def resumable(run: QueuedRun, folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, converted. Raises UserError if the run cannot be resumed with them, or has nothing left to do."""
    if run.status in {"queued", "running"}:
        raise UserError(f"{run.id} is already {run.status}; to stop it: ml-pipeline stop {run.id}")
    check_not_written(folder)
    converted = convert_settings(changes, TrainConfig, source=Path("the changes"))
    train_config(layered(run.settings, converted))
    if converted and not (folder / LATEST_CHECKPOINT).exists():
        raise UserError(
            f"{run.id} has no checkpoint, so it starts again with its own settings; leave the changes out, or submit "
            "another run."
        )
    state = read_state(folder)
    more = converted.get("total_timesteps")
    if state is not None and state.status == "finished":
        if more is None and converted.get("iterations") is None:
            raise UserError(f"{run.id} has finished; pass a larger --total-timesteps to continue it.")
        if more is not None and state.global_step is not None and more <= state.global_step:
            raise UserError(
                f"{run.id} has finished {state.global_step:,} steps, but total_timesteps is {more:,}; pass more."
            )
    return {name: str(value) if isinstance(value, Path) else value for name, value in converted.items()}
