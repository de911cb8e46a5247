"""The environments of a trainer: making a vector environment and its collector, and saving and moving states."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.state import EnvState, PickledState
from ml_pipeline.models.rl.core.user_vec_env import PassingWrapper, UserVectorEnv, autoreset_mode_of
from ml_pipeline.models.rl.core.vec_base import BlockVectorEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater, SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.ranks import Ranks, first_reason, rows_of, states_put
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.device_collector import DeviceCollector, device_generator
from ml_pipeline.models.rl.rollout.host_collector import HostCollector
from ml_pipeline.models.rl.rollout.next_step_collector import NextStepCollector
from ml_pipeline.models.rl.update.gradient_steps import Generator
from ml_pipeline.runtime.plain_data import from_plain, to_plain
from ml_pipeline.runtime.seeding import random_generator


def vectorized(envs: Sequence[EnvFactory] | VectorEnv | gymnasium.Env, ranks: Ranks) -> VectorEnv:
    """`ParallelEnv` for functions, `SerialEnv` for a single environment; a vector environment is returned unchanged.

    ranks: functions are for all environments; this rank makes only its own.
    Raises UserError for other arguments, and if a vector environment declares no autoreset mode.
    """
    if isinstance(envs, Sequence) and not isinstance(envs, str):
        own = envs[rows_of(ranks.rank, ranks.size, len(envs))]
        return ParallelEnv(own, copy=False)  # the collector copies what it stores
    if isinstance(envs, gymnasium.Env) and not isinstance(envs, VectorEnv):  # those of EnvPool are both
        return SerialEnv([lambda: envs])
    if not isinstance(envs, VectorEnv):
        raise UserError(
            'PPOTrainer needs functions that make one environment each, such as [lambda: gymnasium.make("CartPole-v1")]'
            f" * 8, or environments, but got {envs!r}."
        )
    if autoreset_mode_of(envs) is None:
        raise UserError(
            f'{type(envs).__name__} must declare how it resets, in metadata["autoreset_mode"], but has '
            f"{envs.metadata.get('autoreset_mode')}; set it to gymnasium.vector.AutoresetMode.SAME_STEP, NEXT_STEP or "
            "DISABLED."
        )
    return envs


def require_same_step(envs: VectorEnv, trainer: str) -> None:
    """Raise UserError if the environments have another autoreset mode; trainer: its name, for the message."""
    if autoreset_mode_of(envs) != AutoresetMode.SAME_STEP:
        raise UserError(
            f"{trainer} needs environments with autoreset_mode=AutoresetMode.SAME_STEP, but these have "
            f"{envs.metadata.get('autoreset_mode')}; make them with SAME_STEP."
        )


def device_of(envs: Any) -> str | None:
    """The device of the environments' tensors; None for arrays."""
    return getattr(envs, "device", None)


def new_collector(envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks) -> Collector:
    """A collector for the environments of this rank; nothing is stepped yet.

    Raises UserError if the policy does not fit the environments, or if environments or settings do not fit a group of
    ranks.
    """
    device, by_step, mode = device_of(envs), config.normalize_update == "step", autoreset_mode_of(envs)
    if device is not None and by_step and ranks.size == 1 and mode == AutoresetMode.SAME_STEP:
        return DeviceCollector(envs, policy, config, seed=seed)
    if ranks.size > 1 and by_step and config.normalize_obs:
        raise UserError(
            "Several ranks cannot update the statistics of observations after each step; set normalize_update to "
            "rollout (--normalize-update rollout), or switch normalize_obs off."
        )
    if ranks.size > 1 and mode == AutoresetMode.NEXT_STEP:
        raise UserError(
            "Several ranks need environments with autoreset_mode SAME_STEP or DISABLED, but these have NEXT_STEP, in "
            "which environments wait for each other; make them with another mode, or train in one process."
        )
    if device is not None:
        _check_divided(envs, ranks)
        envs = EnvsOfTensors(envs)
    if not isinstance(envs, BlockVectorEnv) or mode == AutoresetMode.DISABLED:
        envs = UserVectorEnv(envs)
    kind = NextStepCollector if mode == AutoresetMode.NEXT_STEP else HostCollector
    return kind(envs, policy, config, seed=seed, ranks=ranks)


def minibatch_generator(envs: VectorEnv, policy: Policy, *, seed: int) -> Generator:
    """The generator for minibatches. It is on the device of the policy if the environments return tensors there."""
    if device_of(envs) is None:
        return random_generator(seed, "minibatches")
    return device_generator(seed, "minibatches", policy.device)


def states_of(envs: VectorEnv) -> tuple[list[EnvState] | None, str]:
    """The states of the environments and "", or None and the reason: they cannot be saved, or the vector environment
    does not support it."""
    of_any: Any = envs
    if not hasattr(envs, "get_states"):
        return None, f"{type(envs).__name__} has no get_states(), so its episodes cannot be saved."
    try:
        # Bytes from another vector environment may be a pickle, which runs code when it is loaded.
        return [PickledState(state) if isinstance(state, bytes) else state for state in of_any.get_states()], ""
    except (AttributeError, StateNotAvailable) as error:  # a wrapper's environments may have none
        return None, str(error)


def states_of_all(envs: VectorEnv, ranks: Ranks) -> tuple[list[EnvState] | None, str]:
    """`states_of` for the environments of all ranks; all ranks call it together, and get None if one rank has None."""
    own = states_of(envs)
    if ranks.size > 1 and own[0] is not None and len(own[0]) != envs.num_envs:
        own = None, f"{type(envs).__name__} gives {len(own[0])} states for {envs.num_envs} environments"
    of_ranks = ranks.gather_values(own, "the states of all environments")
    missing = next((why for states, why in of_ranks if states is None), None)
    return (None, missing) if missing is not None else ([each for states, _ in of_ranks for each in states], "")


def restore_states(envs: VectorEnv, states: list[EnvState], ranks: Ranks) -> None:
    """Put the environments of this rank into their states; states: those of all environments.

    Raises StateNotAvailable, on all ranks, if an environment cannot be put into its state.
    """
    of_any: Any = envs
    rows = rows_of(ranks.rank, ranks.size, len(states))
    states_put(ranks, lambda: of_any.set_states(states[rows]), first_env=rows.start)


def check_states(states: list[EnvState] | None, num_envs: int, ranks: Ranks) -> None:
    """Raise UserError if the states in a checkpoint are of another version. Ranks need one state per environment."""
    if states is None:
        return
    divides = ranks.size == 1 or len(states) == num_envs
    if not divides or not all(isinstance(each, dict | PickledState) for each in states):
        raise UserError(
            "The states of the environments are of another version; continue with the version that wrote them, start "
            'again, or begin new episodes by setting "environments" of the trainer\'s state to None.'
        )


def carry_over(
    earlier: VectorEnv, collector: Collector, later: VectorEnv, later_collector: Collector, *, ranks: Ranks
) -> str:
    """Between two rollouts, continue from the collector of earlier environments with that of later ones.

    All ranks call this together, each with its own environments.
    Returns the reason if all environments begin new episodes, and "" if the earlier ones continue. Raises RescaleLater
    if a step must first report lost episodes.
    """
    states, missing = states_of_all(earlier, ranks)
    _check_reported(earlier, ranks)  # a worker may have died while it wrote them
    if not hasattr(later, "continue_from"):
        states, missing = None, missing or f"{type(later).__name__} has no continue_from()"
    modes = [autoreset_mode_of(envs) for envs in (earlier, later)]
    if AutoresetMode.NEXT_STEP in modes and modes[0] != modes[1]:
        states, missing = None, missing or "only one of both resets in the step after an end (NEXT_STEP)"
    try:
        later_collector.go_on_from(collector, states)
    except StateNotAvailable as error:
        missing = str(error)
        later_collector.go_on_from(collector, None)
    return missing


def _check_divided(envs: VectorEnv, ranks: Ranks) -> None:
    """Raise UserError if there are several ranks, and the environments of tensors have no state per row."""
    if ranks.size > 1 and not hasattr(envs, "get_states"):
        raise UserError(
            f"{type(envs).__name__} cannot be divided among {ranks.size} ranks: it has no get_states(), which gives a "
            "state for each of its environments; write this method, and let each row draw its episodes by its own "
            "seed, or train in one process."
        )


def _check_reported(envs: VectorEnv, ranks: Ranks) -> None:
    """Raise RescaleLater, on all ranks, if a step must first report lost episodes."""
    later = ""
    try:
        if isinstance(envs, ParallelEnv):
            envs.check_reported()
    except RescaleLater as error:
        later = str(error)
    if reason := first_reason(ranks, "whether workers were replaced", later):
        raise RescaleLater(reason)


class EnvsOfAll:
    """The environments of a trainer, as callbacks reach them: Gymnasium's `call`, `get_attr` and `set_attr`.

    With ranks, each rank calls its own environments, and all get the results of all, in order; so every rank calls
    these methods together, and results must be numbers, texts, arrays, or lists, tuples and dicts of them.
    """

    def __init__(self, envs: VectorEnv, ranks: Ranks, num_envs: int) -> None:
        self._envs: Any = envs
        self._ranks = ranks
        self.num_envs = num_envs
        """Over all ranks."""

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute; returns one result per environment."""
        own = self._method("call")(name, *args, **kwargs)
        if self._ranks.size == 1:
            return tuple(own)
        of_ranks = self._ranks.gather_values([to_plain(each) for each in own], f"the results of {name}")
        return tuple(from_plain(each) for of_rank in of_ranks for each in of_rank)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute. A list or tuple has one value per environment; any other value is set in all of them.

        It lasts as long as the environment does: set it in `before_rollout`, so that environments that a restarted
        worker or a change of their number adds get it too.
        """
        if isinstance(values, list | tuple) and self._ranks.size > 1:
            if len(values) != self.num_envs:
                raise UserError(f"set_attr needs one value per environment, {self.num_envs}, but got {len(values)}.")
            values = values[rows_of(self._ranks.rank, self._ranks.size, self.num_envs)]
        self._method("set_attr")(name, values)

    def _method(self, name: str) -> Any:
        if not callable(method := getattr(self._envs, name, None)):
            raise UserError(
                f"{type(self._envs).__name__} has no {name}(); train in functions that make one environment each "
                "(vec_env parallel or serial), or in a vector environment with this method."
            )
        return method


Array = np.ndarray


class EnvsOfTensors(PassingWrapper):
    """Environments of tensors, with arrays instead. A step waits for the device, and copies n observations from it.

    Ranks use it because they send arrays to each other at the end of a rollout. The policy may still be on the device,
    and learn there. Ranks learn the bits of one process if each row draws its own episodes, as in `BatchedTradingEnv`:
    row i after `reset(seed=s)` must draw the episodes of row 0 after `reset(seed=s + i)`.
    """

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(envs)
        self._device = torch.device(envs.device)  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return _arrays(observations), _arrays(infos)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        result: tuple[Any, ...] = self.env.step(torch.from_numpy(actions).to(self._device))
        observations, rewards, terminated, truncated, infos = map(_arrays, result)
        return observations, rewards, terminated, truncated, infos

    def continue_from(self, states: Sequence[Any], *, seed: int) -> Array | None:
        return _arrays(self.env.continue_from(states, seed=seed))  # type: ignore[attr-defined]


def _arrays(value: Any) -> Any:
    """The value with tensors converted to arrays, also in dictionaries."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return {key: _arrays(each) for key, each in value.items()} if isinstance(value, dict) else value
