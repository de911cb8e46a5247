"""Running normalization of observations and rewards on a device, in float32, nothing of it asked for by the host.

What is known when a rollout begins is float64 on the host, and learns of the whole rollout when it is over: float32
only holds what is new in a rollout, so that a long run loses nothing. N environments.
"""

from typing import Any

import torch
from torch import Tensor

from ml_pipeline.models.rl.preprocessing.normalization import (
    CLIP,
    EPSILON,
    Moments,
    ObservationNormalizer,
    RunningMoments,
    merged,
)


class DeviceMoments:
    """`known`, and what has come since `begin`: both together are `mean` and `variance`, float32 (size,)."""

    def __init__(self, known: RunningMoments, device: torch.device) -> None:
        self._known = known
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Begin with what is known by now."""
        mean, variance = (
            torch.as_tensor(array, dtype=torch.float32).to(self._device)
            for array in (self._known.mean, self._known.variance)
        )
        self._base = Moments(mean, variance, self._known.count)
        self._new = Moments(torch.zeros_like(mean), torch.zeros_like(mean), 0)
        self.mean, self.variance = mean, variance

    def update(self, batch: Tensor) -> None:
        """Learn from float32 (B, size)."""
        variance, mean = torch.var_mean(batch, dim=0, correction=0)
        self._new = merged(self._new, mean, variance * len(batch), len(batch))
        self._join()

    def settle(self) -> None:
        """Let `known` learn what is new, which is fetched from the device."""
        mean, variance = torch.stack(self._new[:2]).cpu().double().numpy()
        self._known.merge(mean, variance * self._new.n, self._new.n)

    def state_dict(self) -> dict[str, Any]:
        mean, variance, count = self._new
        return {"mean": mean.cpu().clone(), "variance": variance.cpu().clone(), "count": count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what is known by now, and what was new in `state`."""
        self.begin()
        if state["count"]:
            self._new = Moments(state["mean"].to(self._device), state["variance"].to(self._device), state["count"])
            self._join()

    def _join(self) -> None:
        new = self._new
        self.mean, self.variance, _ = merged(self._base, new.mean, new.variance * new.n, new.n)


class DeviceNormalizer:
    """What an `ObservationNormalizer` of all components does, on a device."""

    def __init__(self, normalizer: ObservationNormalizer, device: torch.device) -> None:
        self.moments = DeviceMoments(normalizer.moments, device)

    def __call__(self, observations: Tensor) -> Tensor:
        """Float32 (..., D) in, a new float32 (..., D) out."""
        scale = (self.moments.variance + EPSILON).rsqrt()
        return ((observations - self.moments.mean) * scale).clamp_(-CLIP, CLIP)


class DeviceRewardScaler:
    """What a `RewardScaler` does, on a device."""

    def __init__(self, num_envs: int, *, gamma: float, device: torch.device) -> None:
        self._known = RunningMoments(1)
        self.moments = DeviceMoments(self._known, device)
        self._returns = torch.zeros(num_envs, device=device)
        self._gamma = gamma

    def __call__(self, rewards: Tensor, done: Tensor) -> Tensor:
        """Learn from one step's rewards, float32 (N,), and return them scaled; done: bool (N,)."""
        returns = self._returns * self._gamma + rewards
        self.moments.update(returns[:, None])
        self._returns = torch.where(done, 0.0, returns)
        return (rewards / (self.moments.variance + EPSILON).sqrt()).clamp_(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        return {
            "known": self._known.state_dict(),
            "moments": self.moments.state_dict(),
            "returns": self._returns.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known.load_state_dict(state["known"])
        self.moments.load_state_dict(state["moments"])
        self._returns = state["returns"].to(self._returns.device)
