"""Whether a run that has ended can go on, and with what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.folder_claim import check_not_written
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.train_config import TrainConfig, layered, read_train_settings, train_config
from ml_pipeline.runtime.regular_file import path_inside
from ml_pipeline.service.queue.store import QueuedRun
from ml_pipeline.service.queue.submission import flat_settings


def known_run(root: Path, name: str) -> QueuedRun:
    """A run of the root that the queue does not know, as one that has ended. Raises UserError where there is none."""
    folder = path_inside(root, name)
    if folder is None or not (folder / SETTINGS_FILE).is_file():
        raise UserError(f'There is no run "{name}" in {root}; `ml-pipeline status` lists those that are there.')
    check_not_written(folder)
    config = train_config(layered(read_train_settings(folder / SETTINGS_FILE)))
    return QueuedRun(
        id=name, status="stopped", settings=flat_settings(config), changes={}, folder_of_work=str(Path.cwd())
    )


def resumable(run: QueuedRun, folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, converted. Raises UserError where the run does not need or cannot take a resumption with them."""
    if run.status in {"queued", "running"}:
        raise UserError(f"{run.id} is {run.status} already; `ml-pipeline stop {run.id}` would stop it.")
    check_not_written(folder)
    converted = convert_settings(changes, TrainConfig, source=Path("the changes"))
    train_config(layered(run.settings, converted))
    if converted and not (folder / LATEST_CHECKPOINT).exists():
        raise UserError(
            f"{run.id} has no checkpoint to go on from, so that it begins anew with its own settings; leave the "
            "changes out, or submit another run."
        )
    state = read_state(folder)
    more = converted.get("total_timesteps")
    if state is not None and state.status == "finished":
        if more is None and converted.get("num_episodes") is None:
            raise UserError(f"{run.id} has finished; it goes on with a larger --total-timesteps.")
        if more is not None and state.global_step is not None and more <= state.global_step:
            raise UserError(
                f"{run.id} has finished {state.global_step:,} steps, but total_timesteps is {more:,}; ask for more."
            )
    return {name: str(value) if isinstance(value, Path) else value for name, value in converted.items()}
