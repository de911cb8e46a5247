"""What the fork server imports before it forks workers: all that they need.

The server leaves the terminal's signals to the trainer, and removes its own folder when it ends. Nothing else imports
this module.
"""

import atexit
import os
import shutil
from multiprocessing import forkserver

from ml_pipeline.models.rl.core.workers import main  # noqa: F401 - a worker then starts within milliseconds
from ml_pipeline.models.rl.core.workers.descendants import lead_group
from ml_pipeline.models.rl.core.workers.fork_server import own_folder


def _remove_folder(server_pid: int) -> None:
    folder = own_folder(forkserver._forkserver)
    if folder is not None and os.getpid() == server_pid:
        shutil.rmtree(folder, ignore_errors=True)


lead_group()
atexit.register(_remove_folder, os.getpid())
