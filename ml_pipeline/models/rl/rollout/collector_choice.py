"""Which collector steps environments: one for arrays on the host, or one for tensors on the environments' device."""

from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.device_collector import DeviceCollector
from ml_pipeline.models.rl.rollout.device_seeding import device_generator
from ml_pipeline.models.rl.rollout.host_collector import RolloutCollector
from ml_pipeline.models.rl.update.minibatches import Generator
from ml_pipeline.runtime.seeding import random_generator


def new_collector(envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int) -> Collector:
    """A collector whose environments were not stepped yet. Raises UserError if the policy does not fit them."""
    kind = RolloutCollector if device_of(envs) is None else DeviceCollector
    return kind(envs, policy, config, seed=seed)


def minibatch_generator(envs: VectorEnv, policy: Policy, *, seed: int) -> Generator:
    """The source of random minibatches: on the policy's device, if the environments' tensors stay there."""
    if device_of(envs) is None:
        return random_generator(seed, "minibatches")
    return device_generator(seed, "minibatches", policy.device)


def device_of(envs: Any) -> str | None:
    """The device of the environments' tensors; None for arrays."""
    return getattr(envs, "device", None)
