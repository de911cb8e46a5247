"""The jobs of `benchmarks/learning.py`: environments and settings, the same for both contestants."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.runs.environments.gym_env import GymEnv, stacked


@dataclass(frozen=True)
class Job:
    """One job; `n_seeds` is per contestant.

    make: returns a new environment, for training if `training` (an Atari episode is then one life).
    """

    make: Callable[..., gymnasium.Env]
    total_steps: int
    n_seeds: int
    num_envs: int
    config: PPOConfig


class PositionsOnly(gymnasium.ObservationWrapper):
    """CartPole without its velocities, which a policy needs memory to infer."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]])

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


def positions_only(*, training: bool) -> gymnasium.Env:
    """CartPole-v1 without its velocities."""
    return PositionsOnly(gymnasium.make("CartPole-v1"))


def car_racing(*, training: bool) -> gymnasium.Env:
    """CarRacing-v3: two gray frames of 64 x 64, each action twice, as in rl-baselines3-zoo.

    A frame is the brighter of the two that an action gives, there the second.
    """
    env: Any = gymnasium.wrappers.MaxAndSkipObservation(gymnasium.make("CarRacing-v3"), skip=2)
    env = gymnasium.wrappers.ResizeObservation(env, (64, 64))
    return stacked(gymnasium.wrappers.GrayscaleObservation(env, keep_dim=True), 2)


def _named(env_id: str, *, atari: bool = False) -> Callable[..., gymnasium.Env]:
    return partial(_make, GymEnv(env_id=env_id, atari=atari))


def _make(env: GymEnv, *, training: bool) -> gymnasium.Env:
    return env.make(training=training)


def _settings(*, normalize: bool = False, **settings: Any) -> PPOConfig:
    return PPOConfig(normalize_obs=normalize, normalize_rewards=normalize, **settings)


_CARTPOLE: dict[str, Any] = {
    "n_steps": 32, "minibatch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
    "learning_rate": "lin_1e-3", "clip_range": "lin_0.2",
}  # fmt: skip
_MUJOCO = _settings(normalize=True, n_steps=2048, minibatch_size=64, n_epochs=10, learning_rate="lin_3e-4")

# Settings: CleanRL's of HalfCheetah and Hopper, rl-baselines3-zoo's (hyperparams/ppo.yml) of the others, without its
# gSDE (Pendulum, MountainCarContinuous, CarRacing), log_std_init and ortho_init, which `--preset zoo` has. Other than
# there are also the steps of Pendulum (1e5 there) and Pong (1e7), and CarRacing's networks, which have two layers of 64
# with tanh, there one of 256 with GELU. MountainCarContinuous explores by more and longer rollouts instead of gSDE.
JOBS = {
    "LunarLander-v3": Job(
        _named("LunarLander-v3"), 1_000_000, 20, 16,
        _settings(n_steps=1024, minibatch_size=64, n_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01),
    ),
    "CartPole-v1": Job(_named("CartPole-v1"), 100_000, 5, 8, _settings(**_CARTPOLE)),
    "MountainCarContinuous-v0": Job(
        _named("MountainCarContinuous-v0"), 300_000, 5, 4,
        _settings(normalize=True, n_steps=512, minibatch_size=256, n_epochs=10, gamma=0.9999, gae_lambda=0.9),
    ),
    "Pendulum-v1": Job(
        _named("Pendulum-v1"), 300_000, 5, 4,
        _settings(n_steps=1024, minibatch_size=64, n_epochs=10, gamma=0.9, learning_rate=1e-3),
    ),
    "CartPole-v1 without velocities, LSTM": Job(
        positions_only, 100_000, 5, 8, _settings(normalize=True, memory="lstm", **_CARTPOLE)
    ),
    "Acrobot-v1": Job(
        _named("Acrobot-v1"), 1_000_000, 5, 16,
        _settings(normalize=True, n_steps=256, minibatch_size=64, n_epochs=4, gae_lambda=0.94),
    ),
    "Hopper-v5": Job(_named("Hopper-v5"), 1_000_000, 10, 1, _MUJOCO),
    "HalfCheetah-v5": Job(_named("HalfCheetah-v5"), 1_000_000, 5, 1, _MUJOCO),
    "Walker2d-v5": Job(
        _named("Walker2d-v5"), 1_000_000, 5, 1,
        _settings(
            normalize=True, n_steps=512, minibatch_size=32, n_epochs=20, learning_rate=5.05041e-05,
            ent_coef=0.000585045, clip_range=0.1, max_grad_norm=1.0, vf_coef=0.871923,
        ),
    ),
    "Ant-v5": Job(
        _named("Ant-v5"), 1_000_000, 5, 1, _settings(normalize=True, n_steps=2048, minibatch_size=64, n_epochs=10)
    ),
    "BipedalWalker-v3": Job(
        _named("BipedalWalker-v3"), 5_000_000, 5, 32,
        _settings(normalize=True, n_steps=2048, minibatch_size=64, n_epochs=10, gamma=0.999, clip_range=0.18),
    ),
    "Pong-v5": Job(
        _named("ale_py:ALE/Pong-v5", atari=True), 1_000_000, 5, 8,
        _settings(
            n_steps=128, minibatch_size=256, n_epochs=4, ent_coef=0.01, learning_rate="lin_2.5e-4",
            clip_range="lin_0.1",
        ),
    ),
    "CarRacing-v3": Job(
        car_racing, 4_000_000, 5, 8,
        PPOConfig(
            normalize_obs=False, normalize_rewards=True, n_steps=512, minibatch_size=128, n_epochs=10,
            learning_rate="lin_1e-4",
        ),
    ),
}  # fmt: skip
