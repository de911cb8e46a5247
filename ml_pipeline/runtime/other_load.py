"""Says in sentences how busy others keep the machine, before and during a measurement."""

import os
import time

from ml_pipeline.runtime.cores import IdleWatch, usable_cores

_BUSY = 0.3  # of a core that others use, from which on it is worth a sentence
_LOOK_S = 0.2


class BackgroundLoad:
    """Measures now and then, while this process and its workers rest, how many cores others keep busy."""

    def __init__(self) -> None:
        self._during: list[float] = []

    def measure(self) -> float:
        """Cores that others use, measured over 0.2 s during which this process sleeps; part of `warning_during`."""
        self._during.append(_others_now())
        return self._during[-1]

    def warning_before(self) -> str | None:
        """Measure before anything else is measured, and say what is to be said; None if the machine is quiet."""
        busy = _others_now()
        if busy < _BUSY:
            return None
        return f"the machine is busy: others use {_of_cores(busy)}{_load()}; the figures may mislead"

    def warning_during(self) -> str | None:
        """What is to be said of the measurements since; None if the machine was quiet."""
        busy = max(self._during, default=0.0)
        if busy < _BUSY:
            return None
        return f"the machine was busy: others used up to {_of_cores(busy)}{_load()}; measure again when it is quiet"


def _others_now() -> float:
    watch = IdleWatch()
    time.sleep(_LOOK_S)
    return usable_cores() - watch.free_cores()


def _of_cores(busy: float) -> str:
    return f"{busy:.1f} of {usable_cores():g} cores"


def _load() -> str:
    """The load average of the last minute, where the system tells."""
    try:
        return f" (load average {os.getloadavg()[0]:.1f})"
    except (OSError, AttributeError):
        return ""
