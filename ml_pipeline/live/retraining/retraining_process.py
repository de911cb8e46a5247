"""Runs one retraining as a process, in a thread that waits for it, so that nobody else does."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.wording import lasting
from ml_pipeline.live.retraining.task_folder import OUTPUT, Outcome, read_outcome, write_outcome
from ml_pipeline.runtime.files import only_regular, open_regular

_PROCESS = (sys.executable, "-m", "ml_pipeline.live.retraining.training_process_main")
_MOST_SAID = 300
_LAST_BYTES = 4_096


class RetrainingProcess:
    """One retraining; `outcome` is there once `is_done`.

    prepare: writes the folder, in the thread. `end` ends the process, and all that it started, and leaves the folder so
    that the retraining can go on later.
    """

    def __init__(self, folder: Path, prepare: Callable[[], None], *, time_limit_s: float) -> None:
        self.folder = folder
        self.outcome: Outcome | None = None
        """What came of it; None while it goes on, and where it was ended."""
        self._prepare = prepare
        self._time_limit_s = time_limit_s
        self._process: subprocess.Popen[str] | None = None
        self._ending = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="retraining", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def pid(self) -> int | None:
        """Of the process; None before it began."""
        process = self._process
        return None if process is None else process.pid

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        self._thread.join(timeout_s)

    def end(self) -> None:
        """End it, and wait until nothing of it is left. May be called twice."""
        with self._lock:
            self._ending = True
            self._kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            outcome = self._retrain()
        except (UserError, OSError) as error:
            reason = str(error) if isinstance(error, UserError) else f"{error.strerror or error}."
            outcome = Outcome(state="failed", sentence=f"It could not begin: {reason}")
        if outcome is not None:
            with contextlib.suppress(OSError):  # of a full disk: then it is tried again at the next start
                if read_outcome(self.folder) is None:
                    write_outcome(self.folder, outcome)
            self.outcome = outcome

    def _retrain(self) -> Outcome | None:
        self._prepare()
        with open(self.folder / OUTPUT, "a", encoding="utf-8", opener=only_regular) as output:
            with self._lock:
                if self._ending:
                    return None
                own_session: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
                self._process = process = subprocess.Popen(
                    _PROCESS, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, **own_session
                )
            assert process.stdin is not None
            with process.stdin as line:  # which stays open until the process has ended: its end is the session's
                code: int | None = None
                try:
                    line.write(f"{self.folder}\n")
                    line.flush()
                    code = process.wait(self._time_limit_s)
                except subprocess.TimeoutExpired:
                    pass
                except BrokenPipeError:
                    code = process.wait()
                finally:
                    with self._lock:
                        self._kill()
                    process.wait()
                    with contextlib.suppress(BrokenPipeError):
                        line.close()
        if self._ending:
            return None
        if code is None:
            return Outcome(
                state="failed", sentence=f"It took longer than {lasting(self._time_limit_s)}, and was ended."
            )
        return read_outcome(self.folder) or Outcome(state="failed", sentence=self._how_it_ended(code))

    def _kill(self) -> None:
        """End the process and its group; nothing where it has ended and was waited for."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()

    def _how_it_ended(self, code: int) -> str:
        if code < 0:
            return f"Its process was killed by {_signal_name(-code)}."
        said = " ".join(_last_line(self.folder / OUTPUT).split())
        return f"Its process ended with exit code {code}{f': {excerpt(said, _MOST_SAID)}' if said else '.'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(path: Path) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
