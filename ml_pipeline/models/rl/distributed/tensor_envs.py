"""Environments that take and give tensors on a device, stepped as environments of arrays. n environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from torch import Tensor

Array = np.ndarray


class EnvsOfTensors(VectorWrapper):
    """The same environments with arrays. A step waits for the device, and copies n observations from it.

    A rank sends arrays to the others at the end of a rollout. The policy may be on the device, and learn there. Ranks
    learn the bits of one process if each row draws its episodes by itself: row i after `reset(seed=s)` as row 0 after
    `reset(seed=s + i)`, as those of `BatchedTradingEnv` do.
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

    def __getattr__(self, name: str) -> Any:
        """What only some environments have, such as `get_states`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)


def _arrays(value: Any) -> Any:
    """Tensors as arrays; in a dictionary as well."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return {key: _arrays(each) for key, each in value.items()} if isinstance(value, dict) else value
