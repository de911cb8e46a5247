"""Starts ranks on this machine.

A rank's stdin is a pipe of this process: where it closes, the launcher is gone.
"""

import os
import subprocess
import sys
from typing import Any

from ml_pipeline.runs.ranks.launcher import Launcher
from ml_pipeline.runs.ranks.rank_info import LAUNCHER_PID
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.free_port import free_port
from ml_pipeline.runtime.interrupts import held_back


class LocalLauncher(Launcher):
    """Ranks as processes of this machine."""

    _ranks: list[subprocess.Popen[bytes]]

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()
            if rank.stdin is not None:
                rank.stdin.close()
        self._ranks = []

    def _start_ranks(self, restart: int) -> None:
        own_group: dict[str, Any] = {"process_group": 0}  # Ctrl-C in the terminal reaches them through us, once
        if sys.platform == "win32":
            own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        threads = {}
        if "OMP_NUM_THREADS" not in os.environ:
            threads["OMP_NUM_THREADS"] = max(1, int(usable_cores() / self._size))
        port = free_port()
        for rank in range(self._size):
            variables = self._variables(
                restart,
                rank,
                LOCAL_RANK=rank,
                LOCAL_WORLD_SIZE=self._size,
                GROUP_RANK=0,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **{LAUNCHER_PID: os.getpid()},
                **threads,
            )
            environment = {**os.environ, **variables}
            with held_back():  # a rank begins with `exit_at_once_on_signals`
                rank_process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment, **own_group)
            self._ranks.append(rank_process)
