"""Running normalization of observations and rewards on a device, in float32, without transfers during a rollout.

The host holds the statistics in float64; the device holds those of the current rollout in float32. At the end of a
rollout the host merges them, so that a long run loses no precision. N environments.
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
    """`mean` and `variance`, float32 (size,), of `known` and all batches since `begin` together."""

    def __init__(self, known: RunningMoments, device: torch.device) -> None:
        self._known = known
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Start from `known` as it is now, with no batch."""
        mean, variance = (
            torch.as_tensor(array, dtype=torch.float32).to(self._device)
            for array in (self._known.mean, self._known.variance)
        )
        self._base = Moments(mean, variance, self._known.count)
        self._new = Moments(torch.zeros_like(mean), torch.zeros_like(mean), 0)
        self.mean, self.variance = mean, variance

    def update(self, batch: Tensor) -> None:
        """Merge a batch, float32 (B, size)."""
        variance, mean = torch.var_mean(batch, dim=0, correction=0)
        self._new = merged(self._new, mean, variance * len(batch), len(batch))
        self._join()

    def merge_into_known(self) -> None:
        """Fetch the statistics since `begin` from the device and merge them into `known`."""
        mean, variance = torch.stack(self._new[:2]).cpu().double().numpy()
        self._known.merge(mean, variance * self._new.n, self._new.n)

    def state_dict(self) -> dict[str, Any]:
        mean, variance, count = self._new
        return {"mean": mean.cpu().clone(), "variance": variance.cpu().clone(), "count": count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `known` as it is now, with the batches of `state`."""
        self.begin()
        if state["count"]:
            self._new = Moments(state["mean"].to(self._device), state["variance"].to(self._device), state["count"])
            self._join()

    def _join(self) -> None:
        new = self._new
        self.mean, self.variance, _ = merged(self._base, new.mean, new.variance * new.n, new.n)


class DeviceNormalizer:
    """`ObservationNormalizer` of all components, on a device."""

    def __init__(self, normalizer: ObservationNormalizer, device: torch.device) -> None:
        self.moments = DeviceMoments(normalizer.moments, device)
        self._clip = normalizer.clip

    def __call__(self, observations: Tensor) -> Tensor:
        """Float32 (..., D) in, a new float32 (..., D) out."""
        scale = (self.moments.variance + EPSILON).rsqrt()
        return ((observations - self.moments.mean) * scale).clamp_(-self._clip, self._clip)


class DeviceRewardScaler:
    """`RewardScaler`, on a device."""

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
