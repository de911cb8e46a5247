"""How to go on after training broke down, as a note on the error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.config.wording import shown_path
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed


@contextmanager
def resume_hint(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Add a note on how to resume to an error that breaks down training in the block, if it has trained before.

    A run that failed in its first `reset()` has nothing to go on from.
    """
    try:
        yield
    except (VectorEnvError, TrainingFailed) as error:
        if has_trained():
            where = shown_path(folder)
            error.add_note(f"The last checkpoint is whole: once the cause is mended, resume the run in {where}.")
        raise
