"""Small trainings for tests of ranks, and what is compared of them."""

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import nn

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.ranks import rows_of

N_ENVS, N_STEPS, N_ITERATIONS = 12, 16, 3
TIMESTEPS = N_ENVS * N_STEPS * N_ITERATIONS


class Masked(gymnasium.Env):
    """A walk on a ring of five places, drawn at each reset: one action is forbidden everywhere, another one each step.

    Its episodes are truncated after 5 to 9 steps, and terminate on the place 0.
    """

    observation_space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(4), "noise": spaces.Box(-9, 9, (2,)), "place": spaces.Discrete(5)}
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(5, 10))
        self.place = int(self.np_random.integers(1, 5))
        return self._seen(), {}

    def step(self, action):
        assert self._seen_mask[action]
        self.t += 1
        self.place = (self.place + int(action) + int(self.np_random.integers(2))) % 5
        return self._seen(), float(self.place), self.place == 0, self.t >= self.end, {}

    def get_plain_state(self):
        return {"at": [self.t, self.end, self.place], "mask": self._seen_mask, "generator": self.np_random}

    def set_plain_state(self, state):
        (self.t, self.end, self.place), self.np_random = state["at"], state["generator"]
        self._seen_mask = state["mask"]

    def _seen(self):
        self._seen_mask = np.ones(4, np.int8)
        self._seen_mask[[0, 1 + self.t % 3]] = 0
        noise = self.np_random.normal(size=2).clip(-9, 9).astype(np.float32)
        return {"action_mask": self._seen_mask, "noise": noise, "place": self.place}


class Seen(gymnasium.Env):
    """A bright square that moves over an image of noise, beside a number: the action says where it is."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "number": spaces.Box(-9, 9, (1,))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        return self._seen(), float(action == self.side), False, self.t == 6, {}

    def _seen(self):
        image = self.np_random.integers(0, 50, (36, 36, 1), np.uint8)
        self.side = int(self.np_random.integers(2))
        image[9:27, 18 * self.side : 18 * self.side + 18] = 255
        return {"image": image, "number": self.np_random.normal(size=1).clip(-9, 9).astype(np.float32)}


class Frames(Seen):
    """The image alone."""

    observation_space = Seen.observation_space["image"]

    def _seen(self):
        return super()._seen()["image"]


def cart_pole() -> gymnasium.Env:
    """Which is truncated after 9 steps, most of the time: its final observations count."""
    return gymnasium.make("CartPole-v1", max_episode_steps=9)


def pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=7)


def convolutions(space: spaces.Space) -> nn.Module:
    assert space.shape is not None
    return nn.Sequential(nn.Conv2d(space.shape[0], 4, 8, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16), nn.ReLU())


TASKS: dict[str, tuple[Callable[[], gymnasium.Env], dict[str, Any]]] = {
    "discrete": (cart_pole, {"normalize_values": True}),
    "continuous": (pendulum, {"normalize_advantages_over": "batch"}),
    "squashed": (pendulum, {"squash_actions": True}),
    "noise by state": (pendulum, {"use_sde": True, "sde_sample_freq": 5}),
    "masked": (Masked, {"share_layers": True}),
    "images": (Seen, {"normalize_rewards": False}),
    "frames": (Frames, {"gradient_chunks": 2}),
    "frames in bfloat16": (Frames, {"bfloat16": True, "share_encoder": False}),
    "memory": (cart_pole, {"memory": "gru", "memory_size": 16, "sequence_length": 8}),
    "memory in torch": (Masked, {"memory": "gru", "memory_size": 16}),
    "user's network": (Frames, {"network": convolutions, "gradient_chunks": 4}),
    "not normalized": (cart_pole, {"normalize_obs": False, "normalize_rewards": False}),
}


def config_of(task: str, **settings: Any) -> PPOConfig:
    usual = {"n_steps": N_STEPS, "minibatch_size": 64, "n_epochs": 2, "hidden_sizes": (16, 16)}
    return PPOConfig(**{**usual, "normalize_update": "rollout", **TASKS[task][1], **settings})


def trainer_of(ranks: Any, task: str, *, n_envs: int = N_ENVS, **settings: Any) -> PPOTrainer:
    sink, timesteps = settings.pop("sink", None), settings.pop("timesteps", TIMESTEPS)
    env_fns, config = [TASKS[task][0]] * n_envs, config_of(task, **settings)
    rows = slice(None) if ranks is None else rows_of(ranks.rank, ranks.size, n_envs)
    envs = ParallelEnv(env_fns[rows], num_workers=0, copy=False)  # measuring them would take half a second
    return PPOTrainer(envs, config, total_timesteps=timesteps, seed=3, sink=sink, ranks=ranks)


def before_step(trainer: PPOTrainer, number: int, act: Callable[[], None]) -> None:
    """Have the trainer call `act` before it steps its environments for the `number`-th time, from 1."""
    step, numbers = trainer._envs.step, itertools.count(1)

    def acting_step(actions: Any) -> Any:
        if next(numbers) == number:
            act()
        return step(actions)

    trainer._envs.step = acting_step


def hash_of(trainer: PPOTrainer) -> str:
    """Of the weights, the statistics, and the moments of Adam."""
    policy, update = trainer.policy.state_dict(), trainer._update.state_dict()
    digest = hashlib.sha256(repr([policy["normalizer"], policy["value_normalizer"]]).encode())
    for weight in policy["network"].values():
        digest.update(weight.numpy().tobytes())
    digest.update(update["optimizer"]["square"].numpy().tobytes())
    return digest.hexdigest()
