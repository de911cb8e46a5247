"""Ends a command on Ctrl-C, SIGTERM or a closed terminal, with one line of output and exit code 128 + the signal.

Commands import this module first, so it imports very little. It also offers `keeping_imports`, which excludes imported
objects from garbage collection.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_RAISED_AGAIN_S = 0.05

Handle = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """The process received one of `ending_signals`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return f"Stopped by {signal.Signals(self.number).name}."


def ending_signals() -> list[int]:
    """The signals that end a command: SIGINT (Ctrl-C), SIGTERM, and SIGHUP unless it is ignored, as under nohup."""
    signals: list[int] = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


# State of the process, like its signal handlers.
_startup_handler: Handle | None = None  # set by `exit_at_once_on_signals`
_ended_by: int | None = None  # the signal that `raising_on_signals(once=True)` raised


def exit_at_once_on_signals(prog: str) -> None:
    """From now on, a signal ends this process at once. For the first lines of a command.

    During imports, an exception from a signal handler could get lost or be printed as a traceback. This also delivers
    signals that the parent process `held_back`.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            if _ended_by is None:
                os.write(2, f"{prog}: {Interrupted(number)}\n".encode())
        os._exit(128 + (_ended_by or number))

    global _startup_handler  # noqa: PLW0603
    _startup_handler = handle
    _install(handle)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending_signals())


def is_command_process() -> bool:
    """Whether this process called `exit_at_once_on_signals`, so it runs one of our commands."""
    return _startup_handler is not None


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the signals within the block, also in processes started in it, until they call `exit_at_once_on_signals`.

    For starting processes that call it: before that call, Ctrl-C would print a traceback. Does nothing on Windows.
    """
    if not hasattr(signal, "pthread_sigmask"):  # as on Windows
        yield
        return
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, ending_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


@contextlib.contextmanager
def exiting_at_once() -> Iterator[None]:
    """Within the block, signals end the process at once again, if it is a command's process. For imports."""
    with _installed(_startup_handler) if _startup_handler else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def raising_on_signals(*, once: bool = False) -> Iterator[None]:
    """Within the block, a signal raises Interrupted. Does nothing outside the main thread.

    once: only the first signal raises; it determines the exit code, even if others arrive before the process ends. A
    supervisor may send SIGTERM right after a terminal's SIGINT, and Python may see both at once.
    If Python cannot propagate the exception, as in a destructor, the signal is raised again 0.05 s later.
    """
    global _ended_by  # noqa: PLW0603
    usual_hook = sys.unraisablehook

    def handle(number: int, frame: FrameType | None) -> None:
        if not once:
            raise Interrupted(number)
        if _ended_by is None:
            _raise_as_the_last(number)

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        global _ended_by  # noqa: PLW0603
        if isinstance(unraisable.exc_value, Interrupted):
            _ended_by = None
            _raise_again_later(unraisable.exc_value.number)
        else:
            usual_hook(unraisable)

    with _installed(handle) as installed:
        if not installed:
            yield
            return
        sys.unraisablehook = hook
        _ended_by = None
        try:
            yield
        finally:
            sys.unraisablehook = usual_hook


@contextlib.contextmanager
def raising_once_more() -> Iterator[None]:
    """Within a block of `raising_on_signals(once=True)`, let one more signal raise; it sets the exit code."""
    with _installed(lambda number, frame: _raise_as_the_last(number)):
        yield


def _raise_as_the_last(number: int) -> None:
    global _ended_by  # noqa: PLW0603
    _ended_by = number
    if _startup_handler is not None:  # while exiting, Python restores the default handlers, which would kill it
        atexit.register(ignore, ending_signals())
    raise Interrupted(number)


def ignore(numbers: Iterable[int]) -> None:
    """Ignore these signals until the process ends."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignore the signals within the block, for the cleanup after one of them."""
    with _installed(lambda number, frame: None):
        yield


def _raise_again_later(number: int) -> None:
    from threading import Timer, main_thread

    def raise_again() -> None:
        if hasattr(signal, "pthread_kill"):  # also wakes the thread up
            signal.pthread_kill(main_thread().ident or 0, number)
        else:
            signal.raise_signal(number)

    Timer(_RAISED_AGAIN_S, raise_again).start()


def only_here(handle: Handle) -> Handle:
    """A handler for this process alone; in a fork of it, a signal ends the fork silently."""
    owner = os.getpid()

    def handle_here(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            os._exit(128 + number)
        handle(number, frame)

    return handle_here


@contextlib.contextmanager
def _installed(handle: Handle) -> Iterator[bool]:
    """Install the handler within the block; yields whether that worked, which it does only in the main thread."""
    usual = _install(handle)
    try:
        yield bool(usual)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _install(handle: Handle) -> dict[int, Handle | int | None]:
    """Install the handler and return the previous ones; outside the main thread do nothing and return {}."""
    usual = {number: signal.getsignal(number) for number in ending_signals()}
    try:
        for number in usual:
            signal.signal(number, only_here(handle))
    except ValueError:  # signal.signal raises it outside the main thread, at the first signal
        return {}
    return usual


@contextmanager
def keeping_imports() -> Iterator[None]:
    """Switch garbage collection off within the block, and exempt everything that exists at its end. For imports.

    Garbage collection took 0.3 s of the 1.4 s of `import torch`, and exempting the objects cut the exit of the process
    from 0.9 s to 0.3 s. Does nothing outside our own commands: the other objects of such a process are not ours.
    """
    if not is_command_process():
        yield
        return
    gc.collect()  # do not exempt what is already garbage
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
