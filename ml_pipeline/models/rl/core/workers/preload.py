"""What the fork server imports before it forks workers: all that they need. When it ends, it removes its own folder.

Nothing else imports this module.
"""

import atexit
import os
import shutil
from multiprocessing import forkserver

from ml_pipeline.models.rl.core.workers import main  # noqa: F401 - a worker then starts within milliseconds
from ml_pipeline.models.rl.core.workers.fork_server import own_folder


def _remove_folder(server_pid: int) -> None:
    folder = own_folder(forkserver._forkserver)
    if folder is not None and os.getpid() == server_pid:
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_remove_folder, os.getpid())
