"""What acting and learning take on this machine, measured by training in environments whose steps take no time."""

import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.choice import whole_cores
from ml_pipeline.models.rl.distributed.cost_model import Sharing
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.observation_layout import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import leaves_of, observation_encoder
from ml_pipeline.models.rl.update.step_choice import chunks_of_gradient
from ml_pipeline.runtime.cores import usable_cores

_GROWTH = 4
_LONG_S, _ENOUGH = 0.1, 9  # a measurement may end early once it has either


class FrozenEnv(gymnasium.Env):
    """Returns one observation for ever; its action space is that of the environment which this was observed in."""

    def __init__(self, spaces: tuple[gymnasium.Space, gymnasium.Space], observation: Any, info: dict[str, Any]) -> None:
        self.observation_space, self.action_space = spaces
        self._observation, self._info = observation, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, self._info


@dataclass(frozen=True, kw_only=True)
class OwnCost:
    """What a trainer does besides stepping.

    acting_s: choosing actions for all environments and storing a step; acting_half_s: for half of them, rounded up.
    learning_s: one update. transition_bytes: what ranks send each other of a transition.
    sharing: how machines share the update; None where each does all of it.
    """

    acting_s: float
    acting_half_s: float
    learning_s: float
    transition_bytes: int
    sharing: Sharing | None = None


def measure_own_cost(
    env_fn: Callable[[], gymnasium.Env],
    config: PPOConfig,
    *,
    num_envs: int,
    device: str | None = None,
    budget_s: float = 2.0,
) -> OwnCost:
    """The cost with as many environments like that of `env_fn`, which is made, reset and closed.

    Takes about `budget_s`, or two small updates where these take longer. Raises UserError where PPO cannot be trained.
    """
    config.check_batch(num_envs)
    with closing(env_fn()) as env:
        observation, info = env.reset(seed=0)
        frozen = partial(FrozenEnv, (env.observation_space, env.action_space), observation, info)
        sent_bytes = transition_bytes(env.observation_space, env.action_space)
    deadline = time.monotonic() + budget_s
    measured = replace(config, n_steps=-(-config.minibatch_size // num_envs), n_epochs=1)
    half = max(1, -(-num_envs // 2))
    of_half = replace(measured, minibatch_size=min(measured.minibatch_size, half * measured.n_steps))
    acting_half_s = _measure(frozen, of_half, half, device).acting_s / of_half.n_steps
    while True:
        began = time.monotonic()
        spent = _measure(frozen, measured, num_envs, device)
        took_s = time.monotonic() - began
        if measured == config or time.monotonic() + _GROWTH * took_s > deadline:
            break
        measured = _larger(measured, config)
    share = measured.n_steps * measured.n_epochs / (config.n_steps * config.n_epochs)
    return OwnCost(
        acting_s=spent.acting_s / measured.n_steps,
        acting_half_s=acting_half_s,
        learning_s=spent.learning_s / share,
        transition_bytes=sent_bytes,
        sharing=_sharing(frozen(), config, num_envs, device),
    )


def transition_bytes(observation_space: gymnasium.Space, action_space: gymnasium.Space) -> int:
    """What ranks send each other of a transition: an observation, an action, a reward in float64, two flags.

    An observation is float32, and images in it are bytes. A policy that sees images also sends its few outputs, which
    are left out.

    >>> transition_bytes(gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2))
    34
    """
    n_actions = sum(math.prod(leaf.shape or ()) for leaf in leaves_of(action_space))
    n_of_images = sum(math.prod(image.shape) for image in observation_layout(observation_space).images)
    return 4 * observation_encoder(observation_space)[1] - 3 * n_of_images + 8 * n_actions + 8 + 2


def _sharing(env: gymnasium.Env, config: PPOConfig, num_envs: int, device: str | None) -> Sharing | None:
    where = choose_device(device or "cpu")
    policy = Policy(env.observation_space, env.action_space, config, seed=0, device=where)
    n_chunks = chunks_of_gradient(policy, config)
    if n_chunks == 1:
        return None
    return Sharing(
        n_chunks=n_chunks,
        cores=whole_cores(usable_cores()),
        n_minibatches=config.n_epochs * math.ceil(num_envs * config.n_steps / config.minibatch_size),
        gradient_bytes=4 * sum(weight.numel() for weight in policy.network.parameters()),
    )


def _larger(measured: PPOConfig, whole: PPOConfig) -> PPOConfig:
    """Longer rollouts, then more epochs: what is done once a rollout weighs less than in a small one."""
    if measured.n_steps < whole.n_steps:
        return replace(measured, n_steps=min(whole.n_steps, _GROWTH * measured.n_steps))
    return replace(measured, n_epochs=min(whole.n_epochs, _GROWTH * measured.n_epochs))


def _measure(env_fn: Callable[[], gymnasium.Env], config: PPOConfig, num_envs: int, device: str | None) -> TimeSpent:
    """The medians of some iterations after the first."""
    with closing(ParallelEnv([env_fn] * num_envs, num_workers=0, copy=False)) as envs:
        trainer = PPOTrainer(envs, config, total_timesteps=10**12, device=device)
        trainer.train_episode_vectorized()  # compiles, and fills caches
        spent: list[TimeSpent] = []
        deadline = time.monotonic() + _LONG_S
        while not spent or (time.monotonic() < deadline and len(spent) < _ENOUGH):
            spent.append(trainer.train_episode_vectorized().time_spent)
    return TimeSpent(*map(statistics.median, zip(*spent, strict=True)))
