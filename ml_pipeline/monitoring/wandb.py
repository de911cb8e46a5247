"""Weights & Biases: the figures of each iteration, the settings, pictures of the report; also offline."""

import importlib.util
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.sink import EpisodeRecord
from ml_pipeline.runtime.files import read_regular

WANDB_FOLDER = "wandb"
"""In a run folder; W&B writes there what it has not sent yet."""
_ID_FILE = "run-id"
_STEP = "time/global_step"
_MOST_BYTES = 1_000


def require_wandb() -> None:
    """Raise UserError where wandb is not installed."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a folder of that name in the working directory is no package
        raise UserError(f'Writing to Weights & Biases takes the extra "wandb": {install_extra("wandb")}')


class WandbSink:
    """Logs each figure under its name in metrics.jsonl, over environment steps; what is no number is left out.

    WANDB_MODE, WANDB_API_KEY and the other variables of W&B count. A resumed run goes on as the same run of W&B.
    """

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """folder: of the run. settings: by name, as values of a settings file."""
        self._folder = folder
        self._project = project
        self._settings = settings
        self._run: Any = None

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Log one iteration."""
        if self._run is None:
            self._open()
        numbers = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
        self._run.log(numbers, step=int(metrics[_STEP]))

    def ended(self, end: RunEnd) -> None:
        """Add the best score and, of a run that finished, the pictures of its report."""
        if self._run is None:
            return
        import wandb

        self._run.summary.update({"status": end.status, "reason": end.reason, "best_score": end.best_score})
        pictures = sorted(end.folder.glob("*.png")) if end.status == "finished" else []
        if pictures:
            self._run.log(
                {f"report/{picture.stem}": wandb.Image(str(picture)) for picture in pictures}, step=end.global_step
            )
        self._run.finish(exit_code=0 if end.status == "finished" else 1)
        self._run = None

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)  # whoever closes without an end broke down
            self._run = None

    def _open(self) -> None:
        import wandb

        folder = self._folder / WANDB_FOLDER
        folder.mkdir(exist_ok=True)
        offline = os.environ.get("WANDB_MODE") in {"offline", "disabled", "dryrun"}
        # System figures are among ours, and what the run prints is in its folder.
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(
            project=self._project,
            id=_stable_id(folder / _ID_FILE),
            name=self._folder.name,
            dir=str(self._folder),
            config=dict(self._settings),
            resume=None if offline else "allow",  # offline it has no effect but a warning
            settings=settings,
        )


def _stable_id(path: Path) -> str:
    """What W&B knows this run by, the same in each stretch of it."""
    try:
        known = read_regular(path, most_bytes=_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        known = ""
    if not known:
        known = secrets.token_hex(4)
        path.write_text(f"{known}\n", encoding="utf-8")
    return known
