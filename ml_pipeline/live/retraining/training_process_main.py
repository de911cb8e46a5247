"""The process of a retraining: it trains at the lowest priority, on the cores it was given, and ends with its session.

python -m ml_pipeline.live.retraining.training_process_main, with the folder of the retraining on stdin, which then
stays open for as long as the session lives.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.errors import CheckFailed, UserError, excerpt
from ml_pipeline.live.retraining.task_folder import Outcome, read_order, write_outcome

_LOWEST_PRIORITY = 19


def main() -> int:
    """Retrain; 0 where outcome.json says what came of it."""
    folder = Path(sys.stdin.readline().rstrip("\n"))
    threading.Thread(target=_end_with_session, daemon=True).start()
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


def _end_with_session() -> None:
    """End this process at once where the session ends; a run that is cut off goes on from its last checkpoint."""
    sys.stdin.read()
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


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
    sys.exit(main())
