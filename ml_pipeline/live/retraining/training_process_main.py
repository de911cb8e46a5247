"""The process of a retraining: it trains at the lowest priority, on the given cores, and ends with its session.

An interrupted run continues from its last checkpoint.
"""

import os
from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.errors import CheckFailed, UserError, excerpt
from ml_pipeline.jobs.child import Parent, serve
from ml_pipeline.live.retraining.task_folder import Outcome, read_order, write_outcome

_LOWEST_PRIORITY = 19


def main(parent: Parent) -> int:
    """Retrain in the folder of the order. Returns 0 if outcome.json has the result."""
    folder = Path(parent.next_order()["folder"])
    _step_back(read_order(folder).cores)

    from ml_pipeline.live.retraining.retraining_run import retrain  # imports torch, which starts on these cores

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
    """Lower the priority and set the cores, in favour of the trading process."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(_LOWEST_PRIORITY)
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


def _crash(error: Exception) -> str:
    return f"It failed with {type(error).__name__}: {' '.join(excerpt(str(error), 300).split())}"


if __name__ == "__main__":
    serve(main)
