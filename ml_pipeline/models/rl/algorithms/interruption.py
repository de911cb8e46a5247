"""Ctrl-C and SIGTERM as requests to stop: the first one asks, a second one ends the program at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def stop_on_signals(
    request_stop: Callable[[], None], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[list[int]]:
    """Within the block, the first of these signals calls `request_stop`; yields a list that receives its number.

    After the first signal the earlier handlers are back, so that a second one has its usual effect.
    """
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()
        request_stop()

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    for number in usual:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()


class InterruptedBetweenSteps(KeyboardInterrupt):
    """Ctrl-C that waited for the end of a step: what was interrupted is whole, and can be saved or continued."""


@contextlib.contextmanager
def interrupted_between_steps(request_stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, Ctrl-C or the stop button of a notebook calls `request_stop`.

    InterruptedBetweenSteps is then raised at the end of the block; a second Ctrl-C raises KeyboardInterrupt at once.

    Does nothing outside the main thread, or if Ctrl-C has another handler already.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with stop_on_signals(request_stop, [signal.SIGINT]) as received:
        yield
    if received:
        raise InterruptedBetweenSteps
