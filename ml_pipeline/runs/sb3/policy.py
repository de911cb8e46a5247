"""The policy of a Stable-Baselines3 model: it acts on one observation at a time, and saves its weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.policies.policy import check_space
from ml_pipeline.models.rl.policies.threads_and_device import one_thread
from ml_pipeline.models.rl.preprocessing.spaces import space_as_data, space_name
from ml_pipeline.runs.sb3.model import SpacesAlone, make_model
from ml_pipeline.runs.sb3.state import OwnGenerators
from ml_pipeline.runtime.seeding import random_generator


class SB3Policy:
    """A `TrainedPolicy` that acts with the current weights of a model."""

    def __init__(self, model: Any, run: RunConfig, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """The spaces are those of a single environment; the model may transpose images."""
        self.model = model
        self.algorithm = run.algorithm
        self.observation_space = observation_space
        self.action_space = action_space
        self.generator = random_generator(run.seed, "predict")
        self.act = SB3Acting(self)

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Raise UserError if the policy was made for other spaces; these are of a single environment."""
        check_space("observations", of_policy=self.observation_space, of_envs=observation_space)
        check_space("actions", of_policy=self.action_space, of_envs=action_space)

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """`predict` of Stable-Baselines3, with the normalization of the run; these policies have no memory.

        Sampling, if the algorithm samples, is seeded by `generator`.
        """
        return self.acted(observation, None if deterministic else self.generator), state

    def acted(self, observation: Any, generator: np.random.Generator | None) -> Any:
        """Actions for one observation or a batch of N: the best, or with a generator sampled, if the algorithm does."""
        if (normalizer := self.model.get_vec_normalize_env()) is not None:
            observation = normalizer.normalize_obs(observation)
        if generator is None:
            return self.model.policy.predict(observation, deterministic=True)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator.integers(2**62)))
            return self.model.policy.predict(observation, deterministic=False)[0]

    def acting_threads(self) -> AbstractContextManager[None]:
        """Within it, actions on a CPU are bit-identical for any number of cores."""
        return one_thread()

    def state_dict(self) -> dict[str, Any]:
        """Weights, the statistics of the normalization, and the spaces as plain data."""
        normalizer = self.model.get_vec_normalize_env()
        return {
            "algorithm": self.algorithm,
            "spaces": {
                "observation": space_as_data(self.observation_space),
                "action": space_as_data(self.action_space),
            },
            "network": {name: weight.clone() for name, weight in self.model.policy.state_dict().items()},
            "normalizer": None if normalizer is None else _statistics(normalizer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load saved weights. Raises UserError if they are of another algorithm."""
        if state["algorithm"] != self.algorithm:
            raise UserError(f"The saved policy is of {state['algorithm']}, but this one is of {self.algorithm}.")
        self.model.policy.load_state_dict(state["network"])
        normalizer, saved = self.model.get_vec_normalize_env(), state["normalizer"]
        if normalizer is not None and saved is not None:
            _load_statistics(normalizer, saved)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> list[str]:
        return [self.algorithm, f"{space_name(self.observation_space)} -> {space_name(self.action_space)}"]


class SB3Acting:
    """Acts in a single environment: the best action, or a sampled one."""

    def __init__(self, policy: SB3Policy) -> None:
        self._policy = policy

    def begin_episode(self) -> None:
        """Does nothing: these policies have no memory."""

    def __call__(self, observation: Any, *, generator: np.random.Generator | None = None) -> Any:
        """The action for one observation: the best, or sampled if a generator is given and the algorithm samples."""
        action = self._policy.acted(observation, generator)
        return int(action) if isinstance(self._policy.action_space, spaces.Discrete) else action


def untrained_model(
    run: RunConfig, ppo: PPOConfig, observation_space: spaces.Space, action_space: spaces.Space, *, device: str
) -> Any:
    """A model that only acts, to load saved weights into. Leaves the global random generators as they were."""
    with OwnGenerators(torch.device(device)).in_use():
        return make_model(run, ppo, SpacesAlone(observation_space, action_space), device=device, only_acts=True)


def _statistics(normalizer: Any) -> dict[str, Any]:
    found = {"observations": getattr(normalizer, "obs_rms", None), "returns": normalizer.ret_rms}
    return {
        "running": torch.from_numpy(np.array(normalizer.returns, np.float64)),
        **{
            name: {"mean": torch.as_tensor(rms.mean), "var": torch.as_tensor(rms.var), "count": float(rms.count)}
            for name, rms in found.items()
            if rms is not None
        },
    }


def _load_statistics(normalizer: Any, saved: Mapping[str, Any]) -> None:
    for name, rms in (("observations", getattr(normalizer, "obs_rms", None)), ("returns", normalizer.ret_rms)):
        if rms is not None:
            rms.mean, rms.var = saved[name]["mean"].numpy().copy(), saved[name]["var"].numpy().copy()
            rms.count = saved[name]["count"]
    if len(saved["running"]) == len(normalizer.returns):
        normalizer.returns = saved["running"].numpy().copy()
