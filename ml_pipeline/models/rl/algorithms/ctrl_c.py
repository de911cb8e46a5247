"""Ctrl-C, and the stop button of a notebook, at a moment from which training can go on."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interrupted_between_steps(request_stop: Callable[[], None]) -> Iterator[None]:
    """Within the block Ctrl-C calls `request_stop`, and KeyboardInterrupt is raised at its end; a second one is raised
    at once.

    Where somebody else handles Ctrl-C, or in another thread than the main one, nothing changes.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request_stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
