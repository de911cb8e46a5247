"""Ctrl-C, SIGTERM and a closed terminal as the end of a command: one line, and exit code 128 + the signal.

It imports next to nothing, so that a command can begin with it. Such a process may also keep its imports out of
garbage collection.
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
    """One of the signals arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return f"Stopped by {signal.Signals(self.number).name}."


def ending_signals() -> list[int]:
    """Those that ask a program to end: Ctrl-C, SIGTERM, and SIGHUP unless it is ignored, as under nohup."""
    signals: list[int] = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


# Of the process, as its handlers are.
_startup_handler: Handle | None = None  # the one of `exit_at_once_on_signals`
_ended_by: int | None = None  # the signal that `raising_on_signals(once=True)` raised


def exit_at_once_on_signals(prog: str) -> None:
    """From now on, one of the signals ends this process at once. For the first lines of a command.

    While modules are imported, an exception can be lost, or printed where nobody can catch it. Signals that whoever
    started this process `held_back` come now.
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
    """Whether this process began with `exit_at_once_on_signals`: it is a command's, from the first line to the end."""
    return _startup_handler is not None


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within the block, the signals wait; those to a process started in it wait until its `exit_at_once_on_signals`.

    For processes that begin with that: before it, Ctrl-C ends Python with a traceback. Windows holds nothing back.
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
    """Within the block, signals end a process again that began with `exit_at_once_on_signals`. For imports."""
    with _installed(_startup_handler) if _startup_handler else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def raising_on_signals(*, once: bool = False) -> Iterator[None]:
    """Within the block, one of the signals raises Interrupted. Does nothing outside the main thread.

    once: only the first does; the process ends with its exit code, whatever arrives before it is gone. A supervisor
    may send SIGTERM right after a terminal's SIGINT, and Python may see both at once.
    Where Python cannot pass the exception on, as in a destructor, the signal is raised again a moment later.
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
    """Within a block of `raising_on_signals(once=True)`: a later signal forces the end, and its exit code counts."""
    with _installed(lambda number, frame: _raise_as_the_last(number)):
        yield


def _raise_as_the_last(number: int) -> None:
    global _ended_by  # noqa: PLW0603
    _ended_by = number
    if _startup_handler is not None:  # Python's own end puts the usual handlers back, which kill
        atexit.register(ignore, ending_signals())
    raise Interrupted(number)


def ignore(numbers: Iterable[int]) -> None:
    """From now on, to the end of this process, these signals do nothing."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Within the block, the signals do nothing: for what is left to tidy up once one of them has ended the work."""
    with _installed(lambda number, frame: None):
        yield


def _raise_again_later(number: int) -> None:
    from threading import Timer, main_thread

    def raise_again() -> None:
        if hasattr(signal, "pthread_kill"):  # which wakes it up as well
            signal.pthread_kill(main_thread().ident or 0, number)
        else:
            signal.raise_signal(number)

    Timer(_RAISED_AGAIN_S, raise_again).start()


def only_here(handle: Handle) -> Handle:
    """A handler that a fork of this process does not inherit: there a signal ends the process, without a word."""
    owner = os.getpid()

    def handle_here(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            os._exit(128 + number)
        handle(number, frame)

    return handle_here


@contextlib.contextmanager
def _installed(handle: Handle) -> Iterator[bool]:
    """Yields whether the handlers are installed, which they are in the main thread alone."""
    usual = _install(handle)
    try:
        yield bool(usual)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _install(handle: Handle) -> dict[int, Handle | int | None]:
    """The handlers that were there before; none outside the main thread, where nothing is installed."""
    usual = {number: signal.getsignal(number) for number in ending_signals()}
    try:
        for number in usual:
            signal.signal(number, only_here(handle))
    except ValueError:  # what signal.signal raises outside the main thread, at the first one
        return {}
    return usual


@contextmanager
def keeping_imports() -> Iterator[None]:
    """Within the block, Python collects no garbage; what exists at its end is never collected. For imports.

    The collector took 0.3 of the 1.4 s of `import torch`. Ending took 0.9 s, and now 0.3.
    Does nothing in a process that did not begin with `exit_at_once_on_signals`: its objects are not ours.
    """
    if not is_command_process():
        yield
        return
    gc.collect()  # what is garbage already is not kept
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
