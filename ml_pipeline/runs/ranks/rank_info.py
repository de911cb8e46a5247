"""Whether this process is one of several ranks, as its environment variables say, and who started it."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_of
from ml_pipeline.runtime.rank_variables import is_rank, launch_id, local_size, rank_and_size, restart_count

OWN_LAUNCH = "ml-pipeline-"
"""How the launch ids begin that our own launchers give, which start ranks again themselves."""
LAUNCHER_PID = "ML_PIPELINE_LAUNCHER_PID"
"""The environment variable in which `LocalLauncher` names its process."""
_NO_ID = "none"  # torchrun's, where no --rdzv-id is given


class RankInfo(NamedTuple):
    """Where a rank stands. launch: names the start that it belongs to, the same after a restart; None where nobody
    named it. restart: how often all ranks were started again, as far as the one who started them counts."""

    rank: int
    size: int
    local_size: int
    launch: str | None
    restart: int

    @property
    def started_by_us(self) -> bool:
        """Whether a launcher of ours started this rank, in place of torchrun."""
        return self.launch is not None and self.launch.startswith(OWN_LAUNCH)

    @property
    def started_by_torchrun(self) -> bool:
        """Whether an agent watches this rank that starts all ranks again where one ends with another code than 0."""
        return self.launch is not None and not self.started_by_us


def rank_info(environment: Mapping[str, str]) -> RankInfo | None:
    """The place that RANK and WORLD_SIZE name, as torchrun sets them; None where neither is set.

    Raises UserError where they are no ranks.

    >>> rank_info({"RANK": "1", "WORLD_SIZE": "4"})
    RankInfo(rank=1, size=4, local_size=4, launch=None, restart=0)
    """
    if not is_rank(environment):
        return None
    rank, size = rank_and_size(environment)
    if not 0 <= rank < size:
        raise UserError(
            f"RANK must be below WORLD_SIZE = {size}, but is {rank}; start ranks with torchrun or --n-processes, or "
            "unset both variables to train in one process."
        )
    here = local_size(environment)
    return RankInfo(rank, size, size if here is None else here, _launch(environment), restart_count(environment))


def launcher_of_this_rank() -> ProcessIdentity | None:
    """The process of `LocalLauncher`, where it started this rank and lives: it stands for all ranks, and outlives
    those that are started again."""
    named = os.environ.get(LAUNCHER_PID)
    if named is None or named != str(os.getppid()):
        return None
    try:
        return identity_of(os.getppid())
    except ProcessLookupError:
        return None


def end_with_launcher() -> None:
    """Where `LocalLauncher` started this rank: from now on, ask this process to end where the launcher is gone.

    The launcher's end closes the pipe that is this process's stdin, however it ended. Raises UserError where it has
    ended already, as one that is killed while its ranks import torch.
    """
    if launcher_of_this_rank() is not None:
        threading.Thread(target=_await_end_of_stdin, name="launcher", daemon=True).start()
    elif _launcher_is_gone():
        raise UserError("The command that started this rank has ended, so the rank ends too; start all ranks again.")


def _launcher_is_gone() -> bool:
    """Whether the launcher named to this process, or to one above it, has ended: no process has its number."""
    named = os.environ.get(LAUNCHER_PID)
    if named is None:
        return False
    try:
        identity_of(int(named))
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError, OverflowError):  # it lives, or the variable is somebody else's
        return False
    return False


def _await_end_of_stdin() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _launch(environment: Mapping[str, str]) -> str | None:
    """torchrun's --rdzv-id or, without one, the agent that started this rank; each machine has an agent of its own."""
    name = launch_id(environment)
    if name != _NO_ID:
        return name
    try:
        agent = identity_of(os.getppid())
    except ProcessLookupError:
        return None
    return f"agent {agent.pid} of {agent.host}, {agent.started}"
