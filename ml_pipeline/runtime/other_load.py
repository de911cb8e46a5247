"""Says in sentences how busy others keep the machine, before and during a measurement."""

import os
import time

from ml_pipeline.runtime.cores import IdleWatch, usable_cores

_BUSY = 0.3  # of a core that others use, from which on it is worth a sentence
_LOOK_S = 0.2


class OtherLoad:
    """Looks now and then, while this process and its workers rest, how many cores others keep busy."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def look(self) -> float:
        """Cores that others used during this look, which takes 0.2 s."""
        watch = IdleWatch()
        time.sleep(_LOOK_S)
        self._seen.append(usable_cores() - watch.free_cores())
        return self._seen[-1]

    def before(self) -> list[str]:
        """What is to be said before a measurement: nothing if the machine is quiet."""
        busy = self.look()
        if busy < _BUSY:
            return []
        return [f"the machine is busy: others use {_of_cores(busy)}{_load()}; the figures may mislead"]

    def during(self) -> list[str]:
        """What is to be said after it, by the looks since `before`."""
        busy = max(self._seen[1:], default=0.0)
        if busy < _BUSY:
            return []
        return [f"the machine was busy: others used up to {_of_cores(busy)}{_load()}; measure again when it is quiet"]


def _of_cores(busy: float) -> str:
    return f"{busy:.1f} of {usable_cores():g} cores"


def _load() -> str:
    """The load average of the last minute, where the system tells."""
    try:
        return f" (load average {os.getloadavg()[0]:.1f})"
    except (OSError, AttributeError):
        return ""
