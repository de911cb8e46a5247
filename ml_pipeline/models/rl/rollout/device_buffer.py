"""Storage for one rollout on a device. T steps, N environments, D observation size."""

from typing import Any

import torch
from torch import Tensor

_FIELDS = ("actions", "rewards", "scaled_rewards", "terminated", "truncated", "finite", "final_observations")


class DeviceBuffer:
    """`RolloutBuffer` in tensors; `position` counts the steps that are filled.

    observations: float32 (T + 1, N, D), normalized; the action of step t was chosen on row t. noise: the noise of all
    T steps. final_observations: float32 (T, N, D), the observation after each step and before a reset; only the device
    knows which of them are needed. rewards, scaled_rewards: float32 (T, N). terminated, truncated: bool (T, N).
    finite: bool (T, N), whether reward and observation were finite. memory: float32 (N, S), the state of a recurrent
    policy before the first step; None without memory.
    """

    def __init__(self, n_steps: int, num_envs: int, observation_size: int, *, actions: Tensor) -> None:
        """actions: (T, N, ...), on the device, of the dtype of actions; the buffer stores actions in it."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=actions.device)

        self.n_steps = n_steps
        self.actions = actions
        self.observations = zeros(n_steps + 1, num_envs, observation_size)
        self.final_observations = zeros(n_steps, num_envs, observation_size)
        self.rewards, self.scaled_rewards = zeros(n_steps, num_envs), zeros(n_steps, num_envs)
        self.terminated, self.truncated, self.finite = (zeros(n_steps, num_envs, dtype=torch.bool) for _ in range(3))
        self.noise: Tensor | None = None
        self.memory: Tensor | None = None
        self.position = n_steps

    @property
    def full(self) -> bool:
        return self.position == self.n_steps

    def start(self, noise: Tensor, memory: Tensor | None) -> None:
        """Begin a rollout with the last observations of the one before."""
        self.observations[0] = self.observations[self.position]
        self.noise = noise
        self.memory = memory
        self.position = 0

    def store(self, *, next_observations: Tensor, **step: Tensor) -> None:
        """Store a copy of one step; each field is (N, ...)."""
        t = self.position
        for name in _FIELDS:
            getattr(self, name)[t] = step[name]
        self.observations[t + 1] = next_observations
        self.position = t + 1

    def state_dict(self) -> dict[str, Any]:
        """The filled part, on the host; between two rollouts, only the observations that the next one begins with."""
        if self.full:
            return {"position": None, "observations": self.observations[self.n_steps].cpu().clone()}
        t = self.position
        assert self.noise is not None
        return {
            "position": t,
            "observations": self.observations[: t + 1].cpu().clone(),
            "noise": self.noise.cpu().clone(),
            "memory": None if self.memory is None else self.memory.cpu().clone(),
            **{name: getattr(self, name)[:t].cpu().clone() for name in _FIELDS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        t = state["position"]
        if t is None:
            self.position = self.n_steps
            self.observations[self.n_steps] = state["observations"]
            return
        self.position = t
        self.observations[: t + 1] = state["observations"]
        self.noise = state["noise"].to(self.rewards.device)
        self.memory = None if state["memory"] is None else state["memory"].to(self.rewards.device)
        for name in _FIELDS:
            getattr(self, name)[:t] = state[name]
