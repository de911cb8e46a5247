"""Starts multiprocessing's fork server with its socket in a short folder of its own.

By default the socket lies in a folder of TMPDIR, where its address may be too long for a socket. In a process that
multiprocessing started, that is even the folder of the process above it.
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
_LONGEST_ADDRESS_BYTES = 103  # what fits a socket address on every system; Linux allows 107
_NAME_BYTES = len("/listener-12345678")


def ensure_running() -> None:
    """Starts the fork server where none runs. Raises UserError where no folder is short enough for its socket.

    The server removes the folder when it ends, which it does after this process and all workers, however these end. If
    it is killed as well, the next one to make such a folder removes it.
    A server that others started before is used as it is.
    """
    forget_parents()
    address, folder = _address(), own_folder()
    if folder is not None and not os.path.exists(address):  # somebody tidied it up
        _forget_server()  # which ends once its workers have
    runs = _pid() is not None
    if runs and folder is None:
        return
    if not runs or folder is None or not os.path.isdir(folder):
        folder = _short_folder()
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    wanted = _preloaded()
    if _PRELOADED not in wanted:  # the default is the user's script, which no worker needs
        forkserver.set_forkserver_preload([*(wanted if wanted != ["__main__"] else ()), _PRELOADED])
    with _temporary_folder(folder):
        forkserver.ensure_running()


def own_folder() -> str | None:
    """The folder that was made for the socket of the fork server; None if others chose its address, or it has none."""
    folder = os.path.dirname(_address())
    return folder if os.path.basename(folder).startswith(_FOLDER_PREFIX) else None


def forget_parents() -> None:
    """Has a fork of the process that started the server start its own: it could not look after that one."""
    pid = _pid()
    if pid is None:
        return
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        with contextlib.suppress(OSError):
            _forget_server()


# What multiprocessing does not publish; read of Python 3.11 to 3.14. A test tells what broke.
_SERVER: Any = forkserver._forkserver


def _pid() -> int | None:
    """Of the fork server, None where none runs."""
    pid: int | None = _SERVER._forkserver_pid
    return pid


def _address() -> str:
    """Of its socket, "" where there is none."""
    return os.fsdecode(_SERVER._forkserver_address or "")


def _preloaded() -> list[str]:
    """The modules that it will import, or has."""
    return list(_SERVER._preload_modules)


def _forget_server() -> None:
    """Have this process start another one, and let this one end once its workers have. Raises OSError if the file that
    it waits for is closed already."""
    alive = _SERVER._forkserver_alive_fd
    _SERVER._forkserver_address = _SERVER._forkserver_alive_fd = _SERVER._forkserver_pid = None
    os.close(alive)


@contextlib.contextmanager
def _temporary_folder(folder: str) -> Iterator[None]:
    """Within the block, multiprocessing makes sockets there."""
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
    """A new folder with a short path, in TMPDIR if that is short itself; what killed trainers left there is removed."""
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
        "and nothing can be written to /tmp and /var/tmp. Set TMPDIR to a path of at most 60 characters, or pass "
        'start_method="spawn".'
    )
