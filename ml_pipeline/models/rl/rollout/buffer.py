"""Storage for one rollout. T steps, N environments, D observation size."""

from typing import Any

import numpy as np
import torch

Array = np.ndarray


class RolloutBuffer:
    """Storage for T steps in N environments, reused by every rollout; `position` counts the steps that are filled.

    observations: (T + 1, N, D), normalized, float32, or uint8 where they are images alone; the action of step t was
    chosen on row t, and the next rollout begins with row T. outputs: float32 (T, N, P + 1), the parameters of the
    distribution and the value on row t, where acting computes both; else None. noise: the noise of all T steps, drawn
    before the first. rewards: float32 (T, N), scaled. terminated, truncated: bool (T, N). final_observations: (t,
    environment, normalized observation) for each truncated episode; only these need a value of their last observation.
    memory: float32 (N, S), the state of a recurrent policy before the first step; None without memory.
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
        """dtype: of observations. reward_type: np.float64 where rewards are stored as the environments gave them."""
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

    @property
    def full(self) -> bool:
        return self.position == self.n_steps

    def start(self, noise: Array, memory: Array | None = None) -> None:
        """Begin a rollout with the last observations of the one before."""
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
        if self.actions is None:
            self.actions = self._rows_like(actions)
        self.actions[t] = actions
        if outputs is not None:
            if self.outputs is None:
                self.outputs = self._rows_like(outputs)
            self.outputs[t] = outputs
        self.rewards[t] = rewards
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        self.observations[t + 1] = next_obs
        self.position = t + 1

    def state_dict(self) -> dict[str, Any]:
        """The filled part as tensors; between two rollouts, only the observations that the next one begins with."""
        t = 0 if self.full else self.position
        first = self.position if self.full else 0
        return {
            "position": t,
            "observations": torch.from_numpy(self.observations[first : self.position + 1].copy()),
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
        self.position = t
        self.observations[: t + 1] = state["observations"].numpy()
        self.rewards[:t] = state["rewards"].numpy()
        self.terminated[:t] = state["terminated"].numpy()
        self.truncated[:t] = state["truncated"].numpy()
        self.noise = state["noise"].numpy()
        self.memory = None if state["memory"] is None else state["memory"].numpy()
        self.final_observations = [(s, i, obs.numpy()) for s, i, obs in state["final_observations"]]
        for name in ("actions", "outputs"):
            if state.get(name) is not None:  # states of earlier versions have no outputs
                rows = state[name].numpy()
                setattr(self, name, np.zeros((self.n_steps, *rows.shape[1:]), dtype=rows.dtype))
                getattr(self, name)[:t] = rows

    def _rows_like(self, of_step: Array) -> Array:
        return np.zeros((self.n_steps, *of_step.shape), dtype=of_step.dtype)
