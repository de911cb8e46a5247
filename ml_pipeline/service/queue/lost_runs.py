"""Runs that wait and that no queue will start: their folder says so, or their row in the queue is of no use."""

from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.runs.state import read_state
from ml_pipeline.service.queue.store import Store

_MOST_NAMED = 8


def lost_runs(root: Path, store: Store) -> list[str]:
    """A sentence for each kind of such runs, with what to do.

    They are not queued again by themselves: their folder knows neither the working directory, in which modules of
    their user are found, nor what a resumption was to change. Raises StoreUnavailable.
    """
    known = {run.id for run in store.runs()}
    broken = store.unreadable
    sentences = [
        f"The queue holds no usable run {id} ({why}); it is left out, and the others go on. Submit it anew under "
        "another id."
        for id, why in broken.items()
    ]
    waiting = [folder.name for folder in sorted(_folders(root)) if folder.name not in known | {*broken}]
    waiting = [name for name in waiting if _is_queued(root / name)]
    if waiting:
        named = " ".join(waiting[:_MOST_NAMED])
        more = f" and {counted(len(waiting) - _MOST_NAMED, 'other')}" if len(waiting) > _MOST_NAMED else ""
        sentences.append(
            f"{counted(len(waiting), 'run')} in {shown_path(root)} {'waits' if len(waiting) == 1 else 'wait'}, but the "
            f"queue that knew so is gone: {named}{more}. `ml-pipeline resume RUN` queues one again, to run in the "
            "directory in which this service was started."
        )
    return sentences


def _folders(root: Path) -> list[Path]:
    try:
        return [each for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except OSError:
        return []


def _is_queued(folder: Path) -> bool:
    with suppress(UserError):
        state = read_state(folder)
        return state is not None and state.status == "queued"
    return False
