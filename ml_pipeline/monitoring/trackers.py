"""Sinks of other programs, TensorBoard and Weights & Biases, written to from a thread of their own."""

import contextlib
import importlib.util
import math
import os
import queue
import secrets
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import shown_path, written
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.sinks import EpisodeRecord, MetricsSink
from ml_pipeline.runtime.files import open_regular, read_regular
from ml_pipeline.runtime.user_code import innermost_user_line

_MOST_WAITING = 1_000


class ThreadedSink:
    """Hands each iteration to a sink in the background, in order.

    A sink that raises is written to no more; one that is so slow that 1,000 iterations wait for it misses those that
    come then. Either is told once, by the thread that trains, and training goes on.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], MetricsSink],
        *,
        say: Callable[[str], None],
        close_timeout_s: float = 10.0,
        most_waiting: int = _MOST_WAITING,
        opens_unwritten: bool = False,
    ) -> None:
        """name: of the sink, in sentences. open_sink: called by the thread before the first iteration and, unless
        `opens_unwritten`, not at all where there is none. say: takes sentences. close_timeout_s: how long `close` waits
        for what is not written yet.
        """
        self._name = name
        self._open_sink = open_sink
        self._say = say
        self._close_timeout_s = close_timeout_s
        self._opens_unwritten = opens_unwritten
        # Not a Queue with a limit: its lock, taken in Python, may keep the trainer waiting for the other thread.
        self._waiting: queue.SimpleQueue[Callable[[MetricsSink], None] | None] = queue.SimpleQueue()
        self._most_waiting = most_waiting
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._told_error = self._told_slow = self._closed = False

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Have one iteration written, at once or soon; costs microseconds."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = self._start()
        self._tell_error()
        if not self._told_error:
            self._put(lambda sink: sink.write(metrics, episodes))

    def ended(self, end: RunEnd) -> None:
        """Tell the sink how the run ended, if it has a method `ended`."""
        if self._thread is not None and not self._closed:
            self._waiting.put(lambda sink: getattr(sink, "ended", lambda end: None)(end))

    def close(self) -> None:
        """Have everything written and the sink closed; one that takes longer than the limit is left alone."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            if not self._opens_unwritten:
                return
            self._thread = self._start()
        self._waiting.put(None)
        self._thread.join(self._close_timeout_s)
        self._tell_error()
        if self._thread.is_alive():
            self._say(
                f"The sink {self._name} did not finish within {self._close_timeout_s:g} s of the run's end; its last "
                "figures may be missing."
            )

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=f"sink {self._name}", daemon=True)
        thread.start()
        return thread

    def _put(self, work: Callable[[MetricsSink], None]) -> None:
        if self._waiting.qsize() < self._most_waiting:
            self._waiting.put(work)
        elif not self._told_slow:
            self._told_slow = True
            self._say(
                f"The sink {self._name} is too slow: {self._most_waiting:,} iterations wait for it, and it misses "
                "those that come until it has caught up. Training goes on."
            )

    def _tell_error(self) -> None:
        if self._error is not None and not self._told_error:
            self._told_error = True
            self._say(f"The sink {self._name} is written to no more: {_described(self._error)} Training goes on.")

    def _work(self) -> None:
        try:
            sink = self._open_sink()
            try:
                while (work := self._waiting.get()) is not None:
                    work(sink)
            except BaseException:
                with contextlib.suppress(BaseException):  # the first error is the one to tell
                    sink.close()
                raise
            sink.close()
        except BaseException as error:  # sys.exit() in a sink would end this thread, and nobody would see it
            self._error = error


def _described(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    place = innermost_user_line(error)
    text = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"line {place.lineno} of {shown_path(Path(place.filename))} raised {text}."


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


WANDB_FOLDER = "wandb"
"""In a run folder; W&B writes there what it has not sent yet."""
_ID_FILE = "run-id"
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
