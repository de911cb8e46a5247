"""TensorBoard's event files: the figures of each iteration, the settings as hyperparameters, pictures of the report."""

import importlib.util
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import written
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.sink import EpisodeRecord
from ml_pipeline.runtime.files import open_regular

EVENTS_FOLDER = "tensorboard"
"""In a run folder."""
_STEP = "time/global_step"
# What the HPARAMS tab shows beside the settings.
_OUTCOMES = ("eval/score", "rollout/mean_return_100", "hparam/best_score")
_RGBA = 4
_PNG = b"\x89PNG\r\n\x1a\n"


def require_tensorboard() -> None:
    """Raise UserError where TensorBoard is not installed."""
    found = importlib.util.find_spec("tensorboard")
    if found is None or found.origin is None:  # a folder of that name in the working directory is no package
        raise UserError(f'Writing event files takes the extra "tensorboard": {install_extra("tensorboard")}')


class TensorBoardSink:
    """Writes each figure under its name in metrics.jsonl, over environment steps; what is no number is left out.

    A resumed run goes on in the same folder: what its earlier stretch wrote after the first step of this one is hidden.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """folder: of the event files, for this run alone; made at the first iteration. settings: by name, as values of
        a settings file."""
        self._folder = folder
        self._settings = settings
        self._writer: Any = None
        self._session_end: Any = None

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Add one iteration, as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        step = int(metrics[_STEP])
        if self._writer is None:
            self._open(step)
        # One event of all scalars costs the trainer's interpreter a quarter of what an add_scalar for each does.
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        self._add(Summary(value=values), step)

    def ended(self, end: RunEnd) -> None:
        """Add the best score and, of a run that finished, the pictures of its report."""
        if self._writer is None:
            return
        if end.best_score is not None and math.isfinite(end.best_score):
            self._writer.add_scalar("hparam/best_score", end.best_score, end.global_step)
        if end.status == "finished":
            self._add(self._session_end, end.global_step)
        for picture in sorted(end.folder.glob("*.png")) if end.status == "finished" else ():
            self._add_picture(picture, end.global_step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        is_resumed = self._folder.is_dir() and any(self._folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(self._folder), purge_step=step if is_resumed else None)
        # As add_hparams does, which would wait for the end, begin a second file, and add points to the curves.
        outcomes = dict.fromkeys(_OUTCOMES, 0.0)
        experiment, session, self._session_end = hparams(_hyperparameters(self._settings), outcomes)
        for summary in (experiment, session):
            self._add(summary, step)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.file_writer.add_summary(summary, step)

    def _add_picture(self, path: Path, step: int) -> None:
        """The file as it is: decoding it would take another library."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        with open_regular(path) as file:
            content = file.read()
        if not content.startswith(_PNG) or len(content) < 24:
            return
        width, height = struct.unpack_from(">II", content, 16)  # PNG, section 11.2.2: IHDR comes first
        image = Summary.Image(height=height, width=width, colorspace=_RGBA, encoded_image_string=content)
        self._add(Summary(value=[Summary.Value(tag=f"report/{path.stem}", image=image)]), step)


def _hyperparameters(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Numbers and truth values as they are, the rest as text; TensorBoard has no word for none."""
    return {
        name: value if isinstance(value, bool | int | float) else written(value)
        for name, value in settings.items()
        if value is not None
    }
