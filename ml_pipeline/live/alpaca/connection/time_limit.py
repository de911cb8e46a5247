"""How long a request to Alpaca may take, the waits between its attempts included."""

import time

TOO_MANY, SERVER_ERRORS = 429, 500
"""The status after which a request is tried again later, and the first of those of a server that has failed."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 1.0


class TimeLimit:
    """From now on, so many seconds. end: by `time.monotonic`."""

    def __init__(self, timeout_s: float) -> None:
        self.end = time.monotonic() + timeout_s
        self._wait_s = _FIRST_WAIT_S

    def wait(self) -> bool:
        """Wait before the next attempt, ever longer; False at once where there is no time for it."""
        if time.monotonic() + self._wait_s > self.end:
            return False
        time.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        return True
