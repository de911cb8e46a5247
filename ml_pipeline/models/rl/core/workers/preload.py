"""The fork server imports this module before it forks workers; it imports everything that workers need.

The server leaves the signals of a terminal and of a service manager to the trainer, and removes its own folder when it
ends. Nothing else imports this module.
"""

import atexit
import os
import shutil
import signal
from multiprocessing import util
from types import ModuleType

from ml_pipeline.models.rl.core.workers import main  # a worker then starts within milliseconds
from ml_pipeline.models.rl.core.workers.fork_server import is_running, own_folder
from ml_pipeline.models.rl.core.workers.main import lead_group


def _remove_folder(server_pid: int) -> None:
    folder = own_folder()
    if folder is not None and os.getpid() == server_pid:
        shutil.rmtree(folder, ignore_errors=True)


def _unblock_sigterm(_: ModuleType) -> None:
    """Lets SIGTERM end the script's own processes; the same server forks them."""
    if not is_running(main.run_worker):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


lead_group()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # workers inherit this, and unblock it once they ignore it
util.register_after_fork(main, _unblock_sigterm)
atexit.register(_remove_folder, os.getpid())
