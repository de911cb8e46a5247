"""Starts multiprocessing's fork server with its socket in a short folder of its own.

By default the socket lies in a folder of TMPDIR, where its address may be too long for a socket. In a process that
multiprocessing started, that is even the folder of the process above it.
"""

import contextlib
import multiprocessing
import os
import shutil
import tempfile
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
    server: Any = forkserver._forkserver
    _forget_unreachable(server)
    folder = own_folder(server)
    if server._forkserver_pid is not None and folder is None:
        return
    if server._forkserver_pid is None or folder is None or not os.path.isdir(folder):
        folder = _short_folder()
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    wanted = server._preload_modules
    if _PRELOADED not in wanted:  # the default is the user's script, which no worker needs
        forkserver.set_forkserver_preload([*(wanted if wanted != ["__main__"] else ()), _PRELOADED])
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    usual = config.get("tempdir")
    config["tempdir"] = folder
    try:
        forkserver.ensure_running()
    finally:
        config["tempdir"] = usual


def own_folder(server: Any) -> str | None:
    """The folder that was made for the socket of a fork server; None if others chose its address, or it has none."""
    folder = os.path.dirname(os.fsdecode(server._forkserver_address or ""))
    return folder if os.path.basename(folder).startswith(_FOLDER_PREFIX) else None


def _forget_unreachable(server: Any) -> None:
    """Has this process start another server where somebody tidied up the folder of the socket."""
    if own_folder(server) is not None and not os.path.exists(server._forkserver_address):
        os.close(server._forkserver_alive_fd)  # it ends once its workers have
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def forget_parents() -> None:
    """Has a fork of the process that started the server start its own: it could not look after that one."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None:
        return
    try:
        os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        with contextlib.suppress(OSError):
            os.close(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


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
