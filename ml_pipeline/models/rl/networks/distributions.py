"""Distributions of actions. B samples, P parameters of the distribution, A action size.

Actions are chosen in NumPy, from noise drawn ahead; log-probabilities and entropies are computed in torch, with their
derivatives in closed form beside them, which the tests compare with autograd.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray

Backward = Callable[[Tensor, float], Tensor]
"""From the loss's derivatives by each log-probability, (B,), and by any entropy, to those by the parameters, (B, P).

It adds derivatives by the distribution's own weights to their `.grad`.
"""

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ActionDistribution(Protocol):
    """What a policy needs of a distribution; parameters: the output of the network, float32 (B, P)."""

    num_parameters: int

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for `sample`, float32 (*shape, ...), for each action of its own."""

    def sample(self, parameters: Array, noise: Array) -> Array:
        """Actions (B, ...) for these parameters and this noise."""

    def mode(self, parameters: Array) -> Array:
        """The likeliest actions (B, ...)."""

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, each (B,)."""

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """The same two, and a function that does what backward() does, without a graph."""


def choices_of(cumulative: Any, noise: Any) -> Any:
    """Which of A choices each noise falls on, by the inverse of the cumulative distribution; arrays or tensors.

    cumulative: float (B, A), sums of weights, which need not add up to 1. noise: float (B,), uniform in [0, 1). Returns
    int64 (B,). NumPy and torch draw by this function, and the compiled kernel by its own copy, which a test compares.
    """
    # float32 noise is at most 1 - 2^-24: its product with the last sum rounds to less than that sum, so that no choice
    # of weight 0 is taken, be it the first or the last.
    return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(axis=1)


class Categorical(nn.Module):
    """One of A choices; the parameters are logits. Actions are int64 (B,)."""

    def __init__(self, num_choices: int) -> None:
        super().__init__()
        self.num_parameters = num_choices

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.random(shape, dtype=np.float32)

    def sample(self, parameters: Array, noise: Array) -> Array:
        weights = np.exp(parameters - parameters.max(axis=1, keepdims=True))
        return choices_of(weights.cumsum(axis=1), noise)

    def mode(self, parameters: Array) -> Array:
        return parameters.argmax(axis=1)

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(parameters, dim=1)
        log_probs = log_p.gather(1, actions[:, None]).squeeze(1)
        return log_probs, -(log_p.exp() * log_p).sum(dim=1)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        log_p = torch.log_softmax(parameters, dim=1)
        p = log_p.exp()
        chosen = actions[:, None]
        entropies = -(p * log_p).sum(dim=1)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # d log p[a] / d logits = onehot(a) - p;  d H / d logits = -p (log p + H)
            column = d_log_probs[:, None]
            d_parameters = (p * -column).scatter_add_(1, chosen, column)
            if d_entropy:
                d_parameters.sub_(p * (log_p + entropies[:, None]), alpha=d_entropy)
            return d_parameters

        return log_p.gather(1, chosen).squeeze(1), entropies, backward


class DiagonalGaussian(nn.Module):
    """A real numbers, independent given the state. The parameters are means; the deviation is the same in all states.

    Actions are float32 (B, A), not clipped: they are clipped for the environment, and the update sees them as sampled.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.num_parameters = size
        self.log_std = nn.Parameter(torch.zeros(size))

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.standard_normal((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: Array, noise: Array) -> Array:
        return parameters + np.exp(self.log_std.detach().cpu().numpy()) * noise

    def mode(self, parameters: Array) -> Array:
        return parameters

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return self._of_standardized((actions - parameters) * torch.exp(-self.log_std))

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        inverse_std = torch.exp(-self.log_std)
        z = (actions - parameters) * inverse_std

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # d log p / d mean = z / std;  d log p / d log_std = z^2 - 1;  d H / d log_std = 1
            weighted = z * d_log_probs[:, None]
            assert self.log_std.grad is not None
            self.log_std.grad += (weighted * z).sum(dim=0) - d_log_probs.sum() + d_entropy * len(z)
            return weighted.mul_(inverse_std)

        return *self._of_standardized(z), backward

    def _of_standardized(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = -(0.5 * z.square() + self.log_std + _HALF_LOG_TWO_PI).sum(dim=1)
        entropy = (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum()
        return log_probs, entropy.expand(len(z))
