"""Sinks for TensorBoard and Weights & Biases, which run in their own threads."""

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
    """Passes iterations to a sink in a background thread, in order.

    A sink that raises receives no more iterations; a slow sink with 1,000 waiting iterations misses new ones. The
    training thread reports either once, and training continues.
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
        """name: of the sink in messages. open_sink: called in the thread before the first iteration; without an
        iteration, only if `opens_unwritten`. say: receives messages. close_timeout_s: how long `close` waits for
        iterations that are not written yet.
        """
        self._name = name
        self._open_sink = open_sink
        self._say = say
        self._close_timeout_s = close_timeout_s
        self._opens_unwritten = opens_unwritten
        # Not a bounded Queue: its Python lock may make the trainer wait for the other thread.
        self._waiting: queue.SimpleQueue[Callable[[MetricsSink], None] | None] = queue.SimpleQueue()
        self._most_waiting = most_waiting
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._told_error = self._told_slow = self._closed = False

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Queue one iteration; takes microseconds."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = self._start()
        self._tell_error()
        if not self._told_error:
            self._put(lambda sink: sink.write(metrics, episodes))

    def ended(self, end: RunEnd) -> None:
        """Call the sink's method `ended`, if it has one."""
        if self._thread is not None and not self._closed:
            self._waiting.put(lambda sink: getattr(sink, "ended", lambda end: None)(end))

    def close(self) -> None:
        """Wait until everything is written and the sink is closed, at most for the time limit."""
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
                f"The sink {self._name} is too slow: {self._most_waiting:,} iterations wait for it, and it misses new "
                "ones until it catches up. Training continues."
            )

    def _tell_error(self) -> None:
        if self._error is not None and not self._told_error:
            self._told_error = True
            self._say(
                f"The sink {self._name} is switched off after an error: {_described(self._error)} Training continues."
            )

    def _work(self) -> None:
        try:
            sink = self._open_sink()
            try:
                while (work := self._waiting.get()) is not None:
                    work(sink)
            except BaseException:
                with contextlib.suppress(BaseException):  # report the first error only
                    sink.close()
                raise
            sink.close()
        except BaseException as error:  # also SystemExit: sys.exit() in a sink would end this thread silently
            self._error = error


def _described(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    place = innermost_user_line(error)
    text = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"line {place.lineno} of {shown_path(Path(place.filename))} raised {text}."


EVENTS_FOLDER = "tensorboard"
"""Subfolder of a run folder."""
_STEP = "time/global_step"
# Metrics in the HPARAMS tab, in addition to the settings.
_OUTCOMES = ("eval/score", "rollout/mean_return_100", "hparam/best_score")
_RGBA = 4
_PNG = b"\x89PNG\r\n\x1a\n"


def require_tensorboard() -> None:
    """Raise UserError if TensorBoard is not installed."""
    found = importlib.util.find_spec("tensorboard")
    if found is None or found.origin is None:  # a folder with this name in the working directory is not the package
        raise UserError(f'Writing event files takes the extra "tensorboard": {install_extra("tensorboard")}')


class TensorBoardSink:
    """Writes each metric under its name in metrics.jsonl, over environment steps; missing numbers are left out.

    A resumed run continues in the same folder: points of its earlier part after the resumed step are hidden.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """folder: for the event files of this run only, created at the first iteration. settings: by name, with values
        as in a settings file."""
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
        # One event with all scalars takes a quarter of the interpreter time of one add_scalar per scalar.
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        self._add(Summary(value=values), step)

    def ended(self, end: RunEnd) -> None:
        """Add the best score and, for a finished run, the pictures of its report."""
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
        # Like add_hparams, which would only work at the end, create a second file, and add points to the curves.
        outcomes = dict.fromkeys(_OUTCOMES, 0.0)
        experiment, session, self._session_end = hparams(_hyperparameters(self._settings), outcomes)
        for summary in (experiment, session):
            self._add(summary, step)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.file_writer.add_summary(summary, step)

    def _add_picture(self, path: Path, step: int) -> None:
        """Add the encoded file as it is: decoding it would need another library."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        with open_regular(path) as file:
            content = file.read()
        if not content.startswith(_PNG) or len(content) < 24:
            return
        width, height = struct.unpack_from(">II", content, 16)  # PNG, section 11.2.2: IHDR comes first
        image = Summary.Image(height=height, width=width, colorspace=_RGBA, encoded_image_string=content)
        self._add(Summary(value=[Summary.Value(tag=f"report/{path.stem}", image=image)]), step)


def _hyperparameters(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Numbers and booleans unchanged, other values as text, without None, which TensorBoard does not support."""
    return {
        name: value if isinstance(value, bool | int | float) else written(value)
        for name, value in settings.items()
        if value is not None
    }


WANDB_FOLDER = "wandb"
"""Subfolder of a run folder, to which W&B writes data that it has not sent yet."""
_ID_FILE = "run-id"
_MOST_BYTES = 1_000


def require_wandb() -> None:
    """Raise UserError if wandb is not installed."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a folder with this name in the working directory is not the package
        raise UserError(f'Writing to Weights & Biases takes the extra "wandb": {install_extra("wandb")}')


class WandbSink:
    """Logs each metric under its name in metrics.jsonl, over environment steps; missing numbers are left out.

    WANDB_MODE, WANDB_API_KEY and the other variables of W&B apply. A resumed run continues the same W&B run.
    """

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """folder: of the run. settings: by name, with values as in a settings file."""
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
        """Add the best score and, for a finished run, the pictures of its report."""
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
            self._run.finish(exit_code=1)  # closed without an end: the run failed
            self._run = None

    def _open(self) -> None:
        import wandb

        folder = self._folder / WANDB_FOLDER
        folder.mkdir(exist_ok=True)
        offline = os.environ.get("WANDB_MODE") in {"offline", "disabled", "dryrun"}
        # Our metrics include system figures, and the run folder has the console output.
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(
            project=self._project,
            id=_stable_id(folder / _ID_FILE),
            name=self._folder.name,
            dir=str(self._folder),
            config=dict(self._settings),
            resume=None if offline else "allow",  # offline, it would only cause a warning
            settings=settings,
        )


def _stable_id(path: Path) -> str:
    """The W&B id of this run, which stays the same when it is resumed."""
    try:
        known = read_regular(path, most_bytes=_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        known = ""
    if not known:
        known = secrets.token_hex(4)
        path.write_text(f"{known}\n", encoding="utf-8")
    return known
