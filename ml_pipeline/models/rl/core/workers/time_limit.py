"""How long something may take, in time for which this process ran.

A monotonic clock goes on while a process is suspended (Ctrl-Z, SIGSTOP, a paused virtual machine, on some systems a
closed lid), and workers are suspended with it: that time says nothing of them.
"""

import time

_LONGEST_GAP_S = 0.5


class TimeLimit:
    """Begins now, and is over once this process has run for `seconds`.

    Whoever waits looks at it several times a second: a gap of more than half a second between two looks counts as half
    a second. The first such gap gives all the time again, since workers that were suspended as well need it to get
    going; only the first, so that a process that is stopped again and again still sees the limit pass.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left_s = seconds
        self._looked_at = time.monotonic()
        self._was_renewed = False

    def left_s(self) -> float:
        """How much of the time is left, at least 0."""
        now = time.monotonic()
        passed_s = now - self._looked_at
        self._looked_at = now
        if passed_s > _LONGEST_GAP_S and not self._was_renewed:
            self._was_renewed = True
            self._left_s = self.seconds
        else:
            self._left_s -= min(passed_s, _LONGEST_GAP_S)
        return max(0.0, self._left_s)

    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self.left_s() <= 0
