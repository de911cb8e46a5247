"""Which collector steps environments: for arrays on the host, for tensors on a device, or for a group of ranks."""

from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.distributed.rank_collector import RankCollector
from ml_pipeline.models.rl.distributed.ranks import Ranks
from ml_pipeline.models.rl.distributed.tensor_envs import EnvsOfTensors
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.device_collector import DeviceCollector
from ml_pipeline.models.rl.rollout.device_seeding import device_generator
from ml_pipeline.models.rl.rollout.host_collector import RolloutCollector
from ml_pipeline.models.rl.update.minibatches import Generator
from ml_pipeline.runtime.seeding import random_generator


def new_collector(envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks) -> Collector:
    """A collector whose environments were not stepped yet; `envs` are this rank's own.

    Raises UserError if the policy does not fit the environments, or they or the settings do not fit a group of ranks.
    """
    device = device_of(envs)
    if ranks.size == 1 and config.normalize_update == "step":
        kind = RolloutCollector if device is None else DeviceCollector
        return kind(envs, policy, config, seed=seed)
    if config.normalize_obs and config.normalize_update == "step":
        raise UserError(
            "Several ranks cannot update the statistics of observations after each step; set normalize_update to "
            "rollout (--normalize-update rollout), or switch normalize_obs off."
        )
    if device is not None:
        _check_divided(envs, ranks)
        envs = EnvsOfTensors(envs)
    return RankCollector(envs, policy, config, seed=seed, ranks=ranks)


def minibatch_generator(envs: VectorEnv, policy: Policy, *, seed: int) -> Generator:
    """The source of random minibatches: on the policy's device, if the environments' tensors stay there."""
    if device_of(envs) is None:
        return random_generator(seed, "minibatches")
    return device_generator(seed, "minibatches", policy.device)


def device_of(envs: Any) -> str | None:
    """The device of the environments' tensors; None for arrays."""
    return getattr(envs, "device", None)


def _check_divided(envs: VectorEnv, ranks: Ranks) -> None:
    """Raise UserError where several ranks have environments of tensors whose rows have no states of their own."""
    if ranks.size > 1 and not hasattr(envs, "get_states"):
        raise UserError(
            f"{type(envs).__name__} cannot be divided among {ranks.size} ranks: it has no get_states(), which gives a "
            "state for each of its environments; write it, with each row drawing its episodes by its own seed, "
            "or train in one process."
        )
