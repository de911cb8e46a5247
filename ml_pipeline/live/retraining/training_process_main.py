"""The process of a retraining: it trains at the lowest priority, on the cores it was given, and ends with its session.

A run that is cut off goes on from its last checkpoint.
"""

import os
from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.errors import CheckFailed, UserError, excerpt
from ml_pipeline.jobs.child import Parent, serve
from ml_pipeline.live.retraining.task_folder import Outcome, read_order, write_outcome

_LOWEST_PRIORITY = 19


def main(parent: Parent) -> int:
    """Retrain in the folder of the order; 0 where outcome.json says what came of it."""
    folder = Path(parent.next_order()["folder"])
    _step_back(read_order(folder).cores)

    from ml_pipeline.live.retraining.retraining_run import retrain  # takes torch, which begins on these cores

    try:
        outcome = retrain(folder)
    except (UserError, CheckFailed) as error:
        outcome = Outcome(state="failed", sentence=str(error))
    except Exception as error:
        with suppress(OSError):
            write_outcome(folder, Outcome(state="failed", sentence=_crash(error)))
        raise
    write_outcome(folder, outcome)
    return 0


def _step_back(cores: tuple[int, ...]) -> None:
    """Leave the machine to the process that trades."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(_LOWEST_PRIORITY)
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


def _crash(error: Exception) -> str:
    return f"It broke down by {type(error).__name__}: {' '.join(excerpt(str(error), 300).split())}"


if __name__ == "__main__":
    serve(main)
