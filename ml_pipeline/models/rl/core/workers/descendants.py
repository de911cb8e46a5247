"""The processes that environments start: they belong to the process group of their worker, and end with it.

One that is to outlive its worker needs a session of its own (`start_new_session=True`). Where there are no process
groups (Windows), the worker alone is ended.
"""

import contextlib
import os
import signal
from typing import NoReturn


def lead_group() -> None:
    """Makes this process the leader of a new group; to be called before it starts others, which then belong to it.

    From then on the terminal's signals reach the trainer alone. After Ctrl-Z, workers finish their step and wait.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def end_with_group() -> NoReturn:
    """Ends this process at once, and its group with it."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def end_group_of(worker_pid: int) -> None:
    """Ends what a worker left behind, which has ended itself and was waited for."""
    if not hasattr(os, "killpg"):
        return
    try:
        os.kill(worker_pid, 0)
    except ProcessLookupError:
        # The group may be empty. macOS says that it may not be signalled where only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker_pid, signal.SIGKILL)
    except PermissionError:
        pass
    # Otherwise a process of others has this number by now; a group that has members keeps it from them.
