"""Starts multiprocessing's fork server with its socket in a separate folder with a short path.

By default the socket is in a folder in TMPDIR, and its path may be too long for a socket address. In a process that
multiprocessing started, it is even in the folder of the parent process.
"""

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, util
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import new_owned_folder

_FOLDER_PREFIX = "ml-workers-"
_PRELOADED = "ml_pipeline.models.rl.core.workers.preload"
_LONGEST_ADDRESS_BYTES = 103  # fits a socket address on every system; Linux allows 107
_NAME_BYTES = len("/listener-12345678")


def ensure_running() -> None:
    """Starts the fork server if none runs. Raises UserError if no folder has a path short enough for its socket.

    The server removes the folder when it ends, which is after this process and all workers, however they end. If it is
    killed as well, the next process that makes such a folder removes the old one.
    A server that other code started before is used unchanged.
    """
    forget_parents()
    address, folder = _address(), own_folder()
    if folder is not None and not os.path.exists(address):  # a cleanup program deleted it
        _forget_server()  # it ends once its workers have ended
    runs = _pid() is not None
    if runs and folder is None:
        return
    if not runs or folder is None or not os.path.isdir(folder):
        folder = _short_folder()
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    wanted = _preloaded()
    if _PRELOADED not in wanted:  # the default is the user's script; no worker needs it
        forkserver.set_forkserver_preload([*(wanted if wanted != ["__main__"] else ()), _PRELOADED])
    with _temporary_folder(folder):
        forkserver.ensure_running()


def own_folder() -> str | None:
    """The folder that this module made for the fork server's socket; None if there is none."""
    folder = os.path.dirname(_address())
    return folder if os.path.basename(folder).startswith(_FOLDER_PREFIX) else None


def forget_parents() -> None:
    """In a fork of the process that started the server, forget it, since only its parent can wait for it."""
    pid = _pid()
    if pid is None:
        return
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        with contextlib.suppress(OSError):
            _forget_server()


# Private attributes of multiprocessing, the same in Python 3.11 to 3.14. A test fails if they change.
_SERVER: Any = forkserver._forkserver


def _pid() -> int | None:
    """Process id of the fork server, None if none runs."""
    pid: int | None = _SERVER._forkserver_pid
    return pid


def _address() -> str:
    """Address of its socket, "" if there is none."""
    return os.fsdecode(_SERVER._forkserver_address or "")


def _preloaded() -> list[str]:
    """The modules that the server imports at its start."""
    return list(_SERVER._preload_modules)


def _forget_server() -> None:
    """Let the server end once its workers have ended, so that this process starts another one. Raises OSError if the
    pipe that the server watches is already closed."""
    alive = _SERVER._forkserver_alive_fd
    _SERVER._forkserver_address = _SERVER._forkserver_alive_fd = _SERVER._forkserver_pid = None
    os.close(alive)


@contextlib.contextmanager
def _temporary_folder(folder: str) -> Iterator[None]:
    """Within the block, multiprocessing makes its sockets in this folder."""
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    usual = config.get("tempdir")
    config["tempdir"] = folder
    try:
        yield
    finally:
        config["tempdir"] = usual


def is_running(function: Callable[..., object]) -> bool:
    """Whether this process was started to run the function."""
    return multiprocessing.current_process()._target is function  # type: ignore[attr-defined]


def _short_folder() -> str:
    """A new folder with a short path, in TMPDIR if that is short; folders of killed trainers are removed."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        try:
            folder = str(new_owned_folder(_FOLDER_PREFIX, parent))
        except OSError:
            continue
        if len(os.fsencode(folder)) + _NAME_BYTES <= _LONGEST_ADDRESS_BYTES:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    raise UserError(
        f'start_method "forkserver" needs a temporary folder with a short path, but TMPDIR is {tempfile.gettempdir()}, '
        "and /tmp and /var/tmp cannot be written to. Set TMPDIR to a path of at most 60 characters, or pass "
        'start_method="spawn".'
    )
