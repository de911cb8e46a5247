"""The states of a trainer's environments, as far as they have any."""

from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import EnvState, PickledState
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater
from ml_pipeline.models.rl.distributed.collective_errors import first_reason, states_put
from ml_pipeline.models.rl.distributed.exchange import pack, unpack
from ml_pipeline.models.rl.distributed.ranks import Ranks
from ml_pipeline.models.rl.distributed.rows import rows_of
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


def states_of_all(envs: VectorEnv, ranks: Ranks) -> tuple[list[EnvState] | None, str]:
    """The same for the environments of all ranks, on every rank; all call it together. None where one has none."""
    own = states_of(envs)
    if ranks.size == 1:
        return own
    if own[0] is not None and len(own[0]) != envs.num_envs:
        own = None, f"{type(envs).__name__} gives {len(own[0])} states for {envs.num_envs} environments"
    of_ranks = [unpack(part) for part in ranks.gather(pack(own), "the states of all environments")]
    missing = next((why for states, why in of_ranks if states is None), None)
    return (None, missing) if missing is not None else ([each for states, _ in of_ranks for each in states], "")


def restore_states(envs: VectorEnv, states: list[EnvState], ranks: Ranks) -> None:
    """Put this rank's environments into their part of the states of all.

    Raises StateNotAvailable, on all ranks, where an environment does not take its state.
    """
    of_any: Any = envs
    rows = rows_of(ranks.rank, ranks.size, len(states))
    states_put(ranks, lambda: of_any.set_states(states[rows]), first_env=rows.start)


def check_states(states: list[EnvState] | None, num_envs: int, ranks: Ranks) -> None:
    """Raise UserError about states of a checkpoint that are of another version; ranks need one for each environment."""
    if states is None:
        return
    divides = ranks.size == 1 or len(states) == num_envs
    if not divides or not all(isinstance(each, dict | PickledState) for each in states):
        raise UserError(
            "The states of the environments are of another version; continue with the version that wrote them, train "
            'anew, or begin new episodes by setting "environments" of the trainer\'s state to None.'
        )


def carry_over(
    earlier: VectorEnv, collector: Collector, later: VectorEnv, later_collector: Collector, *, ranks: Ranks
) -> str:
    """Let a collector of other environments continue where one of earlier environments stands, between two rollouts.

    All ranks call it together, with what is theirs.
    Returns why all environments begin new episodes; "" where those that were there before go on. Raises RescaleLater
    where a step has to report lost episodes first.
    """
    states, missing = states_of_all(earlier, ranks)
    _check_reported(earlier, ranks)  # a worker may have died while it wrote them
    if not hasattr(later, "continue_from"):
        states, missing = None, missing or f"{type(later).__name__} has no continue_from()"
    try:
        later_collector.go_on_from(collector, states)
    except StateNotAvailable as error:
        missing = str(error)
        later_collector.go_on_from(collector, None)
    return missing


def _check_reported(envs: VectorEnv, ranks: Ranks) -> None:
    """Raise RescaleLater, on all ranks, where a step has to report lost episodes first."""
    later = ""
    try:
        if isinstance(envs, ParallelEnv):
            envs.check_reported()
    except RescaleLater as error:
        later = str(error)
    if reason := first_reason(ranks, "whether workers were replaced", later):
        raise RescaleLater(reason)
