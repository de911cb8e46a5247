"""A run whose process goes on, as the service sees it: whether it has ended, when it is killed, and how it ended."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from ml_pipeline.jobs.exit_reason import how_it_ended
from ml_pipeline.runs.state import RunState, Status
from ml_pipeline.runs.stop import ON_REQUEST
from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive


@dataclass
class RunProcess:
    """output_bytes: of output.log before this process. exit_code: None while it goes on, or is not known."""

    process: ProcessIdentity
    output_bytes: int = 0
    exit_code: int | None = None
    has_ended: bool = False
    _kill_at: float | None = None  # on the monotonic clock

    def look(self, *, grace_s: float) -> bool:
        """Notice whether it has ended; kill it where its time to stop is over. Returns whether it was killed now."""
        if not self.has_ended:
            self.has_ended = is_alive(self.process) is False
        if self.has_ended or self._kill_at is None or time.monotonic() < self._kill_at:
            return False
        _kill_group(self.process)
        self.kill_after(grace_s)
        return True

    def kill_after(self, grace_s: float) -> None:
        """From now on it has so many seconds to end by itself."""
        self._kill_at = time.monotonic() + grace_s

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the first one lets it save, a second one ends it at once."""
        if is_alive(self.process):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)


def _kill_group(process: ProcessIdentity) -> None:
    """Kill a run and all that it started; it alone where it leads no group, as one that was resumed by hand."""
    if not is_alive(process):
        return
    with suppress(OSError):
        if not hasattr(os, "killpg"):
            os.kill(process.pid, signal.SIGTERM)
        elif os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)


def outcome(
    *, state: RunState | None, exit_code: int | None, when: str, stop_asked: bool, words: str
) -> tuple[Status, str | None]:
    """The status and the reason of a run whose process is gone.

    state: what state.json tells; None if it cannot be read. exit_code: -N is by signal N; None if the service did not
    start the process, so that the system does not tell. when: "at 14:02:11 UTC", the end of the process; if exit_code
    is None, its last sign of life. words: what the process printed last. A run that never began is "queued": its folder
    is untouched.

    >>> outcome(state=None, exit_code=-9, when="at 14:02:11 UTC", stop_asked=False, words="")
    ('failed', 'The process ended without a message (killed by SIGKILL at 14:02:11 UTC).')
    >>> outcome(state=None, exit_code=None, when="last sign of life at ...", stop_asked=False, words="")
    ('failed', 'The process ended without a message (last sign of life at ...).')
    """
    if state is not None and state.ended is not None and state.status != "queued":
        return state.status, state.reason or (words if state.status == "failed" else None)
    if stop_asked:
        if exit_code == -signal.SIGKILL:
            return "stopped", "It did not stop when asked, and was killed; what its last checkpoint holds is whole."
        return "stopped", ON_REQUEST
    was_killed = exit_code is None or exit_code < 0
    if was_killed and state is not None and state.status == "queued":
        return "queued", "Its process ended before it began."
    how = when if exit_code is None else f"{how_it_ended(exit_code).removeprefix('ended with ')} {when}"
    if not words:
        return "failed", f"The process ended without a message ({how})."
    return "failed", f"The process ended ({how}); it said last:\n{words}" if was_killed else words
