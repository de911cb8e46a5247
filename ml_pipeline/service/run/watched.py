"""A run whose process goes on, as the service sees it: whether it has ended, and when it is killed."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from ml_pipeline.runtime.process_identity import ProcessIdentity, is_alive


@dataclass
class Watched:
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
