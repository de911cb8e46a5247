"""Puts a worker back as it was before a lease, or says what cannot be put back: then it is replaced.

What stays are imported modules of installed packages, and what they hold in memory.
"""

import ctypes
import gc
import importlib
import locale
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from ml_pipeline.models.rl.core.workers.warm.same_code import is_installed, is_own_code

_MOST_GROWTH_BYTES = 256 << 20  # of a worker that holds nothing any more: beyond that it is replaced
_VANISH_S = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class CleanState:
    """How this process is now, before it knows any environments."""

    def __init__(self) -> None:
        gc.collect()
        self._settings = [(read, restore, read()) for read, restore in _SETTINGS]
        self._modules = set(sys.modules)
        self._registry = dict(gymnasium.registry)
        self._files, self._tasks, self._n_bytes = _open_files(), _tasks(), _resident_bytes()
        torch = sys.modules.get("torch")
        self._torch_state = None if torch is None else torch.random.get_rng_state()

    def restore(self, *, but_for: int = -1) -> list[str]:
        """Puts back what can be; what cannot, in a few words each. but_for: an open file that may stay."""
        unfit = []
        for read, restore, before in self._settings:
            try:
                if read() != before:
                    restore(before)
                if read() != before:
                    unfit.append(f"{read.__name__.strip('_')} cannot be put back")
            except Exception as error:
                unfit.append(f"{read.__name__.strip('_')} cannot be put back ({type(error).__name__})")
        self._restore_registry()
        if self._torch_state is not None:
            sys.modules["torch"].random.set_rng_state(self._torch_state)
        gc.collect()
        _give_memory_back()
        return [*unfit, *self._left_behind(but_for)]

    def new_installed_modules(self) -> list[str]:
        """Which modules of installed packages were imported since, in order."""
        return [name for name in self._new_modules() if is_installed(sys.modules.get(name)) and name != "__main__"]

    def _new_modules(self) -> list[str]:
        return [name for name in list(sys.modules) if name not in self._modules]

    def _left_behind(self, but_for: int) -> list[str]:
        found = []
        own = [name for name in self._new_modules() if is_own_code(sys.modules.get(name))]
        if own:
            found.append(f"it imported {own[0]}, which may change")
        elif "torch" in sys.modules and self._torch_state is None:
            found.append("it imported torch")  # whose generator cannot be put back
        if _has_children():
            found.append("processes are left")
        if self._other_threads_stay():
            found.append("threads are left")
        files = _open_files()
        files.pop(str(but_for), None)
        if files != self._files:
            found.append("open files are left")
        if _resident_bytes() > self._n_bytes + _MOST_GROWTH_BYTES:
            found.append("memory is left")
        return found

    def _other_threads_stay(self) -> bool:
        """A thread that was joined may still end in the kernel, and is given a moment to."""
        end = time.monotonic() + _VANISH_S
        while _tasks() != self._tasks:
            if time.monotonic() >= end:
                return True
            time.sleep(0.001)
        return False

    def _restore_registry(self) -> None:
        """Ids that installed modules registered stay with these modules."""
        kept = {}
        for name, spec in gymnasium.registry.items():
            module = str(getattr(spec.entry_point, "__module__", spec.entry_point)).partition(":")[0]
            if name not in self._registry and is_installed(sys.modules.get(module)):
                kept[name] = spec
        gymnasium.registry.clear()
        gymnasium.registry.update({**self._registry, **kept})


def _environment_variables() -> dict[str, str]:
    return dict(os.environ)


def _set_environment_variables(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _working_directory() -> str:
    return os.getcwd()


def _module_paths() -> tuple[Any, ...]:
    return (*sys.path,), (*sys.meta_path,), (*sys.path_hooks,)


def _set_module_paths(before: tuple[Any, ...]) -> None:
    sys.path[:], sys.meta_path[:], sys.path_hooks[:] = before
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def _streams_and_hooks() -> tuple[Any, ...]:
    hooks = (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)
    return sys.stdin, sys.stdout, sys.stderr, *hooks


def _set_streams_and_hooks(before: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr, *hooks = before
    sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook = hooks


def _signal_handlers() -> dict[int, Any]:
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _set_signal_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _blocked_signals() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _timers() -> tuple[Any, ...]:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return tuple(signal.getitimer(timer) != (0.0, 0.0) for timer in timers)


def _stop_timers(_: Any) -> None:
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0.0)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _cores() -> set[int]:
    return os.sched_getaffinity(0)


def _priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _limits() -> dict[int, tuple[int, int]]:
    import resource

    kinds = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
    return {kind: resource.getrlimit(kind) for kind in kinds}


def _set_limits(before: dict[int, tuple[int, int]]) -> None:
    import resource

    for kind, limits in before.items():
        if resource.getrlimit(kind) != limits:
            resource.setrlimit(kind, limits)


def _interpreter() -> tuple[Any, ...]:
    threads = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
    return gc.isenabled(), sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), *threads


def _set_interpreter(before: tuple[Any, ...]) -> None:
    (gc.enable if before[0] else gc.disable)()
    sys.setrecursionlimit(before[1])
    sys.setswitchinterval(before[2])
    gc.set_threshold(*before[3])
    sys.settrace(before[4])
    sys.setprofile(before[5])
    threading.settrace(before[6])
    threading.setprofile(before[7])


def _warning_filters() -> list[Any]:
    return list(warnings.filters)


def _set_warning_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _languages() -> str:
    return locale.setlocale(locale.LC_ALL)


def _numpy_settings() -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(np.geterr()), dict(np.get_printoptions())


def _set_numpy_settings(before: tuple[dict[str, Any], dict[str, Any]]) -> None:
    np.seterr(**before[0])
    np.set_printoptions(**before[1])


def _start_method() -> str | None:
    return multiprocessing.get_start_method(allow_none=True)


_SETTINGS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (_environment_variables, _set_environment_variables),
    (_working_directory, os.chdir),
    (_module_paths, _set_module_paths),
    (_streams_and_hooks, _set_streams_and_hooks),
    (_timers, _stop_timers),
    (_signal_handlers, _set_signal_handlers),
    (_blocked_signals, lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before)),
    (_umask, os.umask),
    (_cores, lambda before: os.sched_setaffinity(0, before)),
    (_priority, lambda before: os.setpriority(os.PRIO_PROCESS, 0, before)),
    (_limits, _set_limits),
    (_interpreter, _set_interpreter),
    (_warning_filters, _set_warning_filters),
    (_languages, lambda before: locale.setlocale(locale.LC_ALL, before)),
    (_numpy_settings, _set_numpy_settings),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    (_start_method, lambda before: multiprocessing.set_start_method(before, force=True)),
]
"""How to read something that environments may change, and how to put it back."""


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            continue
    return found


def _tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * _PAGE


def _has_children() -> bool:
    """Whether this process has children, or somebody else is in its group: children whose parent has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        pass
    group, own = str(os.getpgrp()), str(os.getpid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid != own:
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    if stat.read().rpartition(")")[2].split()[2] == group:
                        return True
            except (OSError, IndexError):
                continue
    return False


def _give_memory_back() -> None:
    """Has the C library give freed memory back to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
