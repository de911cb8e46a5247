"""Whether this process is one of several ranks, by its environment variables, and what started it."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_of
from ml_pipeline.runtime.rank_variables import is_rank, launch_id, local_size, rank_and_size, restart_count

OWN_LAUNCH = "ml-pipeline-"
"""Prefix of the launch ids of our own launchers, which restart ranks themselves."""
LAUNCHER_PID = "ML_PIPELINE_LAUNCHER_PID"
"""The environment variable in which `LocalLauncher` names its process."""
_NO_ID = "none"  # torchrun's default without --rdzv-id


class RankInfo(NamedTuple):
    """A rank's place. launch: id of the launch it belongs to, the same after a restart; None if it has none.
    restart: how often all ranks were restarted, if the launcher counts."""

    rank: int
    size: int
    local_size: int
    launch: str | None
    restart: int

    @property
    def started_by_us(self) -> bool:
        """True if our launcher, not torchrun, started this rank."""
        return self.launch is not None and self.launch.startswith(OWN_LAUNCH)

    @property
    def started_by_torchrun(self) -> bool:
        """True if torchrun's agent watches this rank: it restarts all ranks if one exits with a code other than 0."""
        return self.launch is not None and not self.started_by_us


def rank_info(environment: Mapping[str, str]) -> RankInfo | None:
    """The place from RANK and WORLD_SIZE, as torchrun sets them; None if neither is set.

    Raises UserError if they are invalid.

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
    """The process of `LocalLauncher`, if it started this rank and is alive. It represents all ranks and outlives
    their restarts."""
    named = os.environ.get(LAUNCHER_PID)
    if named is None or named != str(os.getppid()):
        return None
    try:
        return identity_of(os.getppid())
    except ProcessLookupError:
        return None


def end_with_launcher() -> None:
    """If `LocalLauncher` started this rank: from now on, stop this process when the launcher ends.

    However the launcher ends, its end closes the pipe that is this process's stdin. Raises UserError if it has
    already ended, for example killed while its ranks import torch.
    """
    if launcher_of_this_rank() is not None:
        threading.Thread(target=_await_end_of_stdin, name="launcher", daemon=True).start()
    elif _launcher_is_gone():
        raise UserError("The command that started this rank has ended, so the rank ends too; start all ranks again.")


def _launcher_is_gone() -> bool:
    """True if the launcher in the environment variable has ended: no process has its id."""
    named = os.environ.get(LAUNCHER_PID)
    if named is None:
        return False
    try:
        identity_of(int(named))
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError, OverflowError):  # alive, or not our variable
        return False
    return False


def _await_end_of_stdin() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _launch(environment: Mapping[str, str]) -> str | None:
    """torchrun's --rdzv-id or, without one, the agent that started this rank; each machine has its own agent."""
    name = launch_id(environment)
    if name != _NO_ID:
        return name
    try:
        agent = identity_of(os.getppid())
    except ProcessLookupError:
        return None
    return f"agent {agent.pid} of {agent.host}, {agent.started}"
