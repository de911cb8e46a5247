"""Ctrl-C, SIGTERM and SIGHUP as requests to stop: the first signal stops training, a second ends the program."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from ml_pipeline.runtime.interrupts import ending_signals, only_here


@contextlib.contextmanager
def stop_on_signals(request_stop: Callable[[int], None], numbers: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Within the block, the first of these signals calls `request_stop` with its number; yields the numbers received.

    numbers: None means `ending_signals()`. The first signal restores the earlier handlers, so that a second one has its
    usual effect. SIGHUP is an exception: it keeps its handler, and restores none. A closed terminal sends SIGHUP twice,
    often followed by SIGTERM.
    """
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in numbers or ending_signals()}
    hangup = getattr(signal, "SIGHUP", None)

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if number != hangup:
            restore(but=hangup)
        request_stop(number)

    def restore(but: int | None = None) -> None:
        for number, handler in usual.items():
            if number != but:
                signal.signal(number, handler)

    try:
        for number in usual:
            signal.signal(number, only_here(handle))
        yield received
    finally:
        restore()


class InterruptedBetweenSteps(KeyboardInterrupt):
    """Ctrl-C, raised after the end of a step, so that training can be saved or continued."""


@contextlib.contextmanager
def interrupted_between_steps(request_stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, Ctrl-C or the stop button of a notebook calls `request_stop`.

    InterruptedBetweenSteps is then raised at the end of the block. A second Ctrl-C raises KeyboardInterrupt at once.

    Does nothing outside the main thread, or if Ctrl-C already has another handler.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with stop_on_signals(lambda _: request_stop(), [signal.SIGINT]) as received:
        yield
    if received:
        raise InterruptedBetweenSteps
