"""Whether two processes run the same code under the same circumstances: else results could differ, or code be stale."""

import functools
import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[5]
_READ_WHEN_LOADED = ("OPENBLAS_", "MKL_", "NPY_", "NUMBA_", "LD_", "MALLOC_", "GLIBC_", "PYTHONHASHSEED", "PYTHONWARN")
_SET_FOR_WORKERS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@functools.cache
def code_stamp() -> str:
    """Equal in processes with the same interpreter, packages, source of this package, and variables read at loading.

    As it was when this process first asked.
    """
    parts = [sys.version, sys.prefix, str(tuple(sys.flags)), *sys.warnoptions, str(PACKAGE)]
    for folder in installed_folders():
        if os.path.isdir(folder):  # whatever is installed or upgraded there adds and removes entries
            parts.append(f"{folder} {os.stat(folder).st_mtime_ns}")
    for path in sorted(PACKAGE.rglob("*.py")):
        about = path.stat()
        parts.append(f"{path} {about.st_mtime_ns} {about.st_size}")
    for name, value in sorted(os.environ.items()):
        if name.startswith(_READ_WHEN_LOADED) and name not in _SET_FOR_WORKERS:
            parts.append(f"{name}={value}")
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Where installed packages lie; what is elsewhere is somebody's own code, which changes."""
    return tuple(sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")}))


@functools.cache
def _fixed_folders() -> tuple[str, ...]:
    standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    folders = [*installed_folders(), *standard, str(PACKAGE)]
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders)


def is_own_code(module: ModuleType | None) -> bool:
    """Whether a module is neither installed, nor Python's, nor ours: somebody's own, which may change at any time."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str):  # built in, or a folder without __init__.py, whose modules tell
        return False
    return not os.path.realpath(path).startswith(_fixed_folders())


def is_installed(module: ModuleType | None) -> bool:
    """Whether a module lies where packages are installed."""
    return str(getattr(module, "__file__", None)).startswith(installed_folders())
