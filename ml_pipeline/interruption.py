"""Ctrl-C and SIGTERM as a wish to stop: the first asks, a second one does not wait."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_signals(request_stop: Callable[[], None], say: Callable[[str], None]) -> Iterator[list[int]]:
    """Within the block, SIGINT and SIGTERM call `request_stop`; yields a list that the signal's number is put into.

    The signal's usual effect is back after the first, so that a second one ends the program at once.
    """
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        request_stop()
        say("Stopping after this step, then saving; once more to stop without saving.")
        restore()

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    for number in usual:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()
