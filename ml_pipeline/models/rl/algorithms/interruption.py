"""Ctrl-C and SIGTERM as a wish to stop: the first asks, a second one does not wait."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def stop_on_signals(
    request_stop: Callable[[], None], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[list[int]]:
    """Within the block, signals of these numbers call `request_stop`; yields a list that the number is put into.

    The signal's usual effect is back after the first, so that a second one ends the program at once.
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
    """Ctrl-C that waited for the step under way: whoever was interrupted is whole, and can be saved or continued."""


@contextlib.contextmanager
def interrupted_between_steps(request_stop: Callable[[], None]) -> Iterator[None]:
    """Within the block Ctrl-C, and the stop button of a notebook, call `request_stop`, and InterruptedBetweenSteps is
    raised at its end; a second one raises KeyboardInterrupt at once.

    Where somebody else handles Ctrl-C, or in another thread than the main one, nothing changes.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with stop_on_signals(request_stop, [signal.SIGINT]) as received:
        yield
    if received:
        raise InterruptedBetweenSteps
