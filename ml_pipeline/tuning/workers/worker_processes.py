"""The worker processes of one call of `tune`: started, heard, asked to stop, and killed; all on one thread's call.

Each leads a session of its own, so that Ctrl-C in the terminal reaches `tune` alone, which asks them to stop. Each
holds the reading end of a pipe from `tune`, which closes whenever `tune` ends: so no worker outlives it for long.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.runtime.regular_file import only_regular
from ml_pipeline.tuning.workers.worker_process import WorkerOrder

WORKERS_LOG = "workers.log"
"""In the study's folder: what libraries print in workers, and tracebacks of their failures."""
_WORKER = (sys.executable, "-m", "ml_pipeline.tuning.workers.worker_process")


@dataclass(frozen=True)
class WorkerEvent:
    """What a worker told, or its end. told: as in `worker_process`; empty at its end."""

    worker: int
    told: Mapping[str, Any]
    exit_code: int | None = None
    """-N is by signal N."""


class WorkerProcesses:
    """Close it: that kills the workers that still run."""

    def __init__(self, order: WorkerOrder, *, environment: Mapping[str, str], command: Sequence[str] = _WORKER) -> None:
        """environment: variables of the workers besides those of this process. command: what a worker is started by.

        Raises UserError where the log in the study's folder cannot be written.
        """
        self._order = order
        self._environment = {**os.environ, **environment}
        self._command = list(command)
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._path = order.study_folder / WORKERS_LOG
        try:
            order.study_folder.mkdir(parents=True, exist_ok=True)  # the storage may lie elsewhere
            self._log: TextIO = open(self._path, "a", encoding="utf-8", opener=only_regular)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise UserError(f"{shown_path(self._path)} cannot be written: {error.strerror}.") from error

    @property
    def log(self) -> Path:
        return self._path

    def start(self) -> int:
        """Start one more worker and return its pid. Raises UserError where the system refuses."""
        own_session: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            own_session = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment,
                encoding="utf-8",
                **own_session,
            )
        except OSError as error:
            raise UserError(f"No process can be started for trials: {error.strerror}.") from error
        self._processes[process.pid] = process
        reader = threading.Thread(target=self._hear, args=(process,), name=f"worker {process.pid}", daemon=True)
        self._readers.append(reader)
        reader.start()
        self._write(process, json.dumps({**self._order.as_json(), "sys_path": list(sys.path)}))
        return process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers whose end was not yet told."""
        return tuple(self._processes)

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """What a worker tells next; None where none does for so long. A worker's end comes after all that it told."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event.exit_code is not None:
            self._forget(event.worker)
        return event

    def stop(self) -> None:
        """Ask all workers to save and end. Waits for nothing."""
        for process in self._processes.values():
            self._write(process, "stop")

    def kill(self) -> None:
        """End all workers at once, and wait until they are gone."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def close(self) -> None:
        """May be called twice."""
        self.kill()
        for reader in self._readers:
            reader.join()
        for pid in list(self._processes):
            self._forget(pid)
        self._log.close()

    def _hear(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # half a line of one that was killed
                self._events.put(WorkerEvent(process.pid, json.loads(line)))
        self._events.put(WorkerEvent(process.pid, {}, exit_code=process.wait()))

    def _forget(self, pid: int) -> None:
        process = self._processes.pop(pid, None)
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @staticmethod
    def _write(process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            process.stdin.write(line + "\n")
            process.stdin.flush()
