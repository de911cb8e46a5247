"""Storage for one rollout, in arrays or in tensors on a device. T steps, N environments, D observation size."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray


_FIELDS = ("actions", "rewards", "scaled_rewards", "terminated", "truncated", "finite", "final_observations")


class RolloutBuffer:
    """Storage for T steps in N environments, reused by every rollout; `position` counts the steps that are filled.

    observations: (T + 1, N, D), normalized, float32, or uint8 if they consist of images only. The action of step t was
    chosen for row t, and the next rollout begins with row T. outputs: float32 (T, N, P + 1), distribution parameters
    and value for row t, if acting computed both; else None. noise: drawn before the first step, one row per step, or
    per draw if several steps use the same noise.
    rewards: float32 (T, N), scaled. terminated, truncated: bool (T, N). final_observations: (t, environment, normalized
    observation) for each truncated episode; the values of these observations are needed, and no others. memory: float32
    (N, S), the state of a recurrent policy before the first step; None without memory.
    """

    def __init__(
        self,
        n_steps: int,
        num_envs: int,
        observation_size: int,
        *,
        dtype: type = np.float32,
        reward_type: type = np.float32,
    ) -> None:
        """dtype: of observations. reward_type: np.float64 if rewards are stored before scaling."""
        self.n_steps = n_steps
        self.observations: Array = np.zeros((n_steps + 1, num_envs, observation_size), dtype=dtype)
        self.rewards: Array = np.zeros((n_steps, num_envs), dtype=reward_type)
        self.terminated = np.zeros((n_steps, num_envs), dtype=bool)
        self.truncated = np.zeros((n_steps, num_envs), dtype=bool)
        self.actions: Array | None = None
        self.outputs: Array | None = None
        self.noise: Array | None = None
        self.memory: Array | None = None
        self.final_observations: list[tuple[int, int, Array]] = []
        self.position = n_steps
        self.n_ahead = 0  # steps after `position` that only some environments have taken

    @property
    def full(self) -> bool:
        return self.position == self.n_steps

    def start(self, noise: Array, memory: Array | None = None) -> None:
        """Begin a rollout with the last observations of the previous one."""
        self.memory = memory
        self.observations[0] = self.observations[self.position]
        self.noise = noise
        self.final_observations = []
        self.position = 0

    def store(
        self,
        actions: Array,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        next_obs: Array,
        *,
        outputs: Array | None = None,
    ) -> None:
        """Store a copy of one step."""
        t = self.position
        self._store_choice(t, slice(None), actions, outputs)
        self.rewards[t] = rewards
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        self.observations[t + 1] = next_obs
        self.position = t + 1

    def store_own_steps(
        self,
        steps: Array,
        envs: Array,
        *,
        actions: Array,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        outputs: Array | None,
    ) -> None:
        """Store a step of some environments, each at its own place; the caller moves `position`, and stores the next
        observations. steps, envs: int (K,). The others are for all N environments."""
        self._store_choice(steps, envs, actions, outputs)
        self.rewards[steps, envs] = rewards[envs]
        self.terminated[steps, envs] = terminated[envs]
        self.truncated[steps, envs] = truncated[envs]

    def state_dict(self) -> dict[str, Any]:
        """The filled part as tensors; between two rollouts, only the first observations of the next one."""
        t = 0 if self.full else self.position + self.n_ahead
        first = self.position if self.full else 0
        return {
            "position": 0 if self.full else self.position,
            "observations": torch.from_numpy(self.observations[first : first + t + 1].copy()),
            "rewards": torch.from_numpy(self.rewards[:t].copy()),
            "terminated": torch.from_numpy(self.terminated[:t].copy()),
            "truncated": torch.from_numpy(self.truncated[:t].copy()),
            "actions": None if self.full or self.actions is None else torch.from_numpy(self.actions[:t].copy()),
            "outputs": None if self.full or self.outputs is None else torch.from_numpy(self.outputs[:t].copy()),
            "noise": None if self.full or self.noise is None else torch.from_numpy(self.noise.copy()),
            "memory": None if self.full or self.memory is None else torch.from_numpy(self.memory.copy()),
            "final_observations": [(s, i, torch.from_numpy(obs.copy())) for s, i, obs in self.final_observations],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        t = state["position"]
        if state["noise"] is None:
            self.position = self.n_steps
            self.observations[self.n_steps] = state["observations"][0].numpy()
            return
        self.position, t = t, len(state["rewards"])
        self.n_ahead = t - self.position
        self.observations[: t + 1] = state["observations"].numpy()
        self.rewards[:t] = state["rewards"].numpy()
        self.terminated[:t] = state["terminated"].numpy()
        self.truncated[:t] = state["truncated"].numpy()
        self.noise = state["noise"].numpy()
        self.memory = None if state["memory"] is None else state["memory"].numpy()
        self.final_observations = [(s, i, obs.numpy()) for s, i, obs in state["final_observations"]]
        for name in ("actions", "outputs"):
            if state.get(name) is not None:  # earlier versions saved no outputs
                rows = state[name].numpy()
                setattr(self, name, np.zeros((self.n_steps, *rows.shape[1:]), dtype=rows.dtype))
                getattr(self, name)[:t] = rows

    def _store_choice(self, t: Any, envs: Any, actions: Array, outputs: Array | None) -> None:
        if self.actions is None:
            self.actions = self._rows_like(actions)
        self.actions[t, envs] = actions[envs]
        if outputs is not None:
            if self.outputs is None:
                self.outputs = self._rows_like(outputs)
            self.outputs[t, envs] = outputs[envs]

    def _rows_like(self, of_step: Array) -> Array:
        return np.zeros((self.n_steps, *of_step.shape), dtype=of_step.dtype)


class DeviceBuffer:
    """`RolloutBuffer` in tensors on a device; `position` counts the steps that are filled.

    observations: float32 (T + 1, N, D), normalized; the action of step t was chosen for row t. noise: as there.
    final_observations: float32 (T, N, D), the observation after each step and before a reset; all are stored, because
    the host does not know which episodes ended. rewards, scaled_rewards: float32 (T, N). terminated, truncated: bool
    (T, N). finite: bool (T, N), whether reward and observation were finite. memory: float32 (N, S), the state of a
    recurrent policy before the first step; None without memory.
    """

    def __init__(self, n_steps: int, num_envs: int, observation_size: int, *, actions: Tensor) -> None:
        """actions: (T, N, ...), in which the buffer stores actions; it has their device and dtype."""

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
        """Begin a rollout with the last observations of the previous one."""
        self.observations[0] = self.observations[self.position]
        self.noise = noise
        self.memory = memory
        self.position = 0

    def store(self, *, next_observations: Tensor, **step: Tensor) -> None:
        """Store a copy of one step; every field is (N, ...)."""
        t = self.position
        for name in _FIELDS:
            getattr(self, name)[t] = step[name]
        self.observations[t + 1] = next_observations
        self.position = t + 1

    def state_dict(self) -> dict[str, Any]:
        """The filled part, on the host; between two rollouts, only the first observations of the next one."""
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
