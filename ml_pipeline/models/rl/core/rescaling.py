"""Moves the environments of a pool, between two steps, to other workers: the new ones are ready before the old end."""

import contextlib
import warnings
from collections.abc import Sequence

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.observation_mode import ObservationMode, check_space_mismatches
from ml_pipeline.models.rl.core.stepping.protocol import Command
from ml_pipeline.models.rl.core.stepping.state import EnvState
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.models.rl.core.workers.open import PoolOpener
from ml_pipeline.models.rl.core.workers.pool import WorkerPool
from ml_pipeline.runtime.global_random import global_generators_untouched


class RescaleLater(UserError):
    """A worker was just replaced, and the next step has to report the episodes that it lost first."""


def refuse_unreported(pool: WorkerPool) -> None:
    """Raises RescaleLater where the next step has to report lost episodes."""
    if pool.restarts is not None and pool.restarts.unreported:
        raise RescaleLater("A worker was just replaced, which the next step has to report; rescale after that step.")


def moved_pool(
    old: WorkerPool,
    opener: PoolOpener,
    division: Division,
    states: Sequence[EnvState],
    *,
    observation_mode: ObservationMode,
) -> WorkerPool:
    """Another pool over environments in these states, which takes over the counts of the old one; that stays open.

    Raises what opening a pool and setting states raise, and leaves nothing of the new pool then.
    """
    layout = old.batch.layout
    in_use = [env for worker in old.here for env in worker.envs]
    with global_generators_untouched():
        # One that fails here is not restarted with new episodes: the old one still has these.
        new = opener.open(division, (layout.observation_space, layout.action_space), not_these=in_use)
        try:
            check_space_mismatches(new.space_mismatches, observation_mode)
            new.post(Command.SET_STATES, None, list(states))
            new.collect()
        except BaseException:
            with contextlib.suppress(Exception):
                new.close(terminate=True)
            raise
    new.waited_s = old.waited_s
    if old.restarts is not None:
        old.restarts.move_to(new.batch)
        new.restarts, old.restarts = old.restarts, None
    return new


def close_left(old: WorkerPool) -> None:
    """Closes the pool that was moved from; an environment of this process that fails there is a warning."""
    try:
        old.close()
    except Exception as error:  # foreign code may raise anything; its state has moved on
        warnings.warn(
            f"An environment that was moved to another worker failed in close(): {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
