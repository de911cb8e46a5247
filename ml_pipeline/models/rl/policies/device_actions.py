"""Choosing actions on a device, as the distributions do in NumPy.

T steps, N environments, P parameters of the distribution, K choices or numbers of an action.
"""

from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ml_pipeline.models.rl.networks.distributions import DiagonalGaussian, choices_of
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace


class DeviceActions(Protocol):
    """For the same noise, the same actions as the policy's distribution, but for rounding."""

    def empty(self, *shape: int) -> Tensor:
        """Zeros of the shape and dtype of actions, (*shape, ...)."""

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Noise for `sample`, float32 (*shape, ...), on the generator's device."""

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions (N, ...) in the form that an update takes, for parameters (N, P)."""

    def fit(self, actions: Tensor) -> Tensor:
        """The same actions in the form that environments of this action space take."""


def device_actions(policy: Policy) -> DeviceActions:
    """For the policy's action space and device. Raises UnsupportedSpace if only the host can choose such actions."""
    space = policy.action_space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _Choices(space, policy.device)
    if isinstance(space, spaces.Box):
        return _Numbers(space, policy)
    raise UnsupportedSpace(
        f"On a device, actions must be Box, Discrete or MultiDiscrete, but the action space is {space}; use "
        "environments that take arrays."
    )


class _Choices:
    """One choice, int64 (N,), or several side by side, float32 (N, K), as in `Categorical` and `Joint`."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete, device: torch.device) -> None:
        self._single = isinstance(space, spaces.Discrete)
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec.ravel()]
        self._counts = counts
        self._starts = torch.as_tensor(np.ravel(space.start), device=device)
        self._shape: tuple[int, ...] = space.shape or ()
        self._device = device

    def empty(self, *shape: int) -> Tensor:
        if self._single:
            return torch.zeros(shape, dtype=torch.int64, device=self._device)
        return torch.zeros((*shape, len(self._counts)), device=self._device)

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        columns = () if self._single else (len(self._counts),)
        return torch.rand((*shape, *columns), generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        if self._single:
            return _drawn(parameters, noise)
        logits = parameters.split(self._counts, dim=1)
        choices = [_drawn(own, drawn) for own, drawn in zip(logits, noise.unbind(1), strict=True)]
        return torch.stack(choices, dim=1).to(torch.float32)

    def fit(self, actions: Tensor) -> Tensor:
        return (actions.long().reshape(len(actions), -1) + self._starts).reshape(-1, *self._shape)


class _Numbers:
    """Numbers of a Gaussian, float32 (N, K), clipped or squashed for the environments."""

    def __init__(self, space: spaces.Box, policy: Policy) -> None:
        assert isinstance(policy.distribution, DiagonalGaussian)
        self._distribution = policy.distribution
        self._low, self._high = (
            torch.as_tensor(bound.astype(np.float32).ravel()).to(policy.device) for bound in (space.low, space.high)
        )
        self._squashes = policy.squashes_actions
        self._shape = space.shape

    def empty(self, *shape: int) -> Tensor:
        return torch.zeros((*shape, len(self._low)), device=self._low.device)

    def draw_noise(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        return torch.randn((*shape, len(self._low)), generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return parameters + self._distribution.log_std.detach().exp() * noise

    def fit(self, actions: Tensor) -> Tensor:
        low, high = self._low, self._high
        if self._squashes:
            actions = (low + high) / 2 + (high - low) / 2 * torch.tanh(actions)
        return actions.clamp(low, high).reshape(-1, *self._shape)


def _drawn(logits: Tensor, noise: Tensor) -> Tensor:
    """As `Categorical.sample`; if the device's noise may be 1, that is the last choice."""
    weights = torch.exp(logits - logits.amax(dim=1, keepdim=True))
    return choices_of(weights.cumsum(dim=1), noise).clamp_(max=logits.shape[1] - 1)
