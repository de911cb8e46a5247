"""The states of a trainer's environments, as far as they have any."""

from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import EnvState, PickledState
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.rollout.collector import Collector


def states_of(envs: VectorEnv) -> tuple[list[EnvState] | None, str]:
    """The states of the environments, or None and the reason why there are none: they cannot be written, or the vector
    environment does not know how."""
    of_any: Any = envs
    try:
        # Bytes of a vector environment of somebody else's are not known to be harmless.
        return [PickledState(state) if isinstance(state, bytes) else state for state in of_any.get_states()], ""
    except (AttributeError, StateNotAvailable) as error:
        return None, str(error)


def check_states(states: list[EnvState] | None) -> None:
    """Raise UserError about states of a checkpoint that are of another version."""
    if states is not None and not all(isinstance(each, dict | PickledState) for each in states):
        raise UserError("The states of the environments are of another version; set them to None to begin anew.")


def carry_over(earlier: VectorEnv, collector: Collector, later: VectorEnv, later_collector: Collector) -> str:
    """Let a collector of other environments continue where one of earlier environments stands, between two rollouts.

    Returns why all environments begin new episodes; "" where those that were there before go on. Raises RescaleLater
    where a step has to report lost episodes first.
    """
    states, missing = states_of(earlier)
    if isinstance(earlier, ParallelEnv):  # a worker may have died while it wrote them
        earlier.check_reported()
    if not hasattr(later, "continue_from"):
        states, missing = None, missing or f"{type(later).__name__} has no continue_from()"
    try:
        later_collector.go_on_from(collector, states)
    except StateNotAvailable as error:
        missing = str(error)
        later_collector.go_on_from(collector, None)
    return missing
