"""A sink that is written to from a thread of its own, so that it can neither slow nor break the training."""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.sink import EpisodeRecord, MetricsSink
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
