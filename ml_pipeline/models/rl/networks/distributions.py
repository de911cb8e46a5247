"""Distributions over actions, one for each action space. B samples, P parameters of the distribution, A action size.

NumPy samples actions, from noise that was drawn in advance. torch computes log-probabilities and entropies. Their
derivatives are also written in closed form; tests compare these with autograd.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, leaves_of

Array = np.ndarray

Backward = Callable[[Tensor, float], Tensor]
"""From the derivatives of the loss by each log-probability, (B,), and by every entropy, one number, to its derivatives
by the parameters, (B, P).

It also adds the derivatives by the distribution's own weights to their `.grad`.
"""


class ActionDistribution(Protocol):
    """The interface of a distribution; parameters: the output of the network, float32 (B, P)."""

    num_parameters: int

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for `sample`, float32 (*shape, ...), independent for each action."""

    def sample(self, parameters: Array, noise: Array) -> Array:
        """Actions (B, ...) that follow from the parameters and the noise."""

    def mode(self, parameters: Array) -> Array:
        """The most likely actions (B, ...)."""

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, each (B,)."""

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """Log-probabilities and entropies without a graph, and a function that computes their derivatives."""


def distribution_for(space: spaces.Space, *, squash: bool = False) -> Any:
    """The distribution over the actions of one environment.

    space: of a single environment. squash: map Box actions into their bounds by tanh.
    Raises UnsupportedSpace if no distribution fits the space.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(math.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return Joint([Categorical(int(n)) for n in space.nvec.ravel()])
    if isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        return SquashedGaussian(size) if squash else DiagonalGaussian(size)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [distribution_for(leaf, squash=squash) for leaf in leaves_of(space)]
        return Joint([each for part in parts for each in (part.parts if isinstance(part, Joint) else [part])])
    raise UnsupportedSpace(
        f"Actions of {type(space).__name__} are not supported; wrap the environment so that it takes a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
    )


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


def choices_of(cumulative: Any, noise: Any) -> Any:
    """Sample one of A choices per row by inverting the cumulative distribution; for arrays or tensors.

    cumulative: float (B, A), cumulative weights, which need not add up to 1. noise: float (B,), uniform in [0, 1).
    Returns int64 (B,). NumPy and torch use this function; the compiled kernel has a copy, and a test compares them.
    """
    # float32 noise is at most 1 - 2^-24. Its product with the last sum therefore rounds to less than that sum, and a
    # choice of weight 0 is never taken, neither as the first nor as the last.
    return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(axis=1)


class Bernoulli(nn.Module):
    """A independent bits; the parameters are the logits of 1. Actions are int64 (B, A)."""

    def __init__(self, num_choices: int) -> None:
        super().__init__()
        self.num_parameters = num_choices

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.random((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: Array, noise: Array) -> Array:
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and 1 / infinity is the right 0
            return (noise < 1.0 / (1.0 + np.exp(-parameters))).astype(np.int64)

    def mode(self, parameters: Array) -> Array:
        return (parameters > 0.0).astype(np.int64)

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        # log p(a) = a l - log(1 + e^l);  H = log(1 + e^l) - p l
        log_normalizers = F.softplus(parameters)
        log_probs = (actions * parameters - log_normalizers).sum(dim=1)
        return log_probs, (log_normalizers - torch.sigmoid(parameters) * parameters).sum(dim=1)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        p = torch.sigmoid(parameters)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # d log p(a) / d l = a - p;  d H / d l = -l p (1 - p)
            d_parameters = (actions - p) * d_log_probs[:, None]
            return d_parameters.sub_(parameters * p * (1.0 - p), alpha=d_entropy)

        return *self.log_probs_and_entropies(parameters, actions), backward


class DiagonalGaussian(nn.Module):
    """A independent Gaussian components. The parameters are means; the standard deviations are the same in all states.

    Actions are float32 (B, A) as sampled; they are clipped only for the environment.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.num_parameters = size
        self.log_std = nn.Parameter(torch.zeros(size))

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.standard_normal((*shape, *self.log_std.shape), dtype=np.float32)

    def sample(self, parameters: Array, noise: Array) -> Array:
        return self.explored(parameters, noise, np.exp(self.log_std.detach().cpu().numpy()))

    def explored(self, parameters: Any, noise: Any, deviations: Any) -> Any:
        """`sample` for arrays or tensors, with exp(log_std)."""
        return parameters + deviations * noise

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


_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class StateDependentGaussian(DiagonalGaussian):
    """Gaussians whose noise is a linear function of L features: action = mean + features @ matrix.

    The parameters are the means and the features, A + L columns. The noise of an action is its matrix, (L, A), before
    it is multiplied by the deviations; a matrix that is kept for several steps makes exploration smooth. Given the
    features, the variance is features^2 @ deviations^2. Its gradient does not reach the features.
    Source: Raffin et al. 2021, Smooth Exploration for Robotic Reinforcement Learning, arXiv:2005.05719.
    """

    def __init__(self, size: int, num_features: int) -> None:
        super().__init__(size)
        self._size = size
        self.num_parameters = size + num_features
        self.log_std = nn.Parameter(torch.zeros(num_features, size))

    def explored(self, parameters: Any, noise: Any, deviations: Any) -> Any:
        # The sum over features has the same order for any number of rows, and so the same bits; a product has not.
        return parameters[:, : self._size] + (parameters[:, self._size :, None] * (deviations * noise)).sum(1)

    def mode(self, parameters: Array) -> Array:
        return parameters[:, : self._size]

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        variances = self._variances(parameters)
        z = (actions - parameters[:, : self._size]) * variances.rsqrt()
        log_deviations = 0.5 * variances.log() + _HALF_LOG_TWO_PI
        return -(0.5 * z.square() + log_deviations).sum(dim=1), (log_deviations + 0.5).sum(dim=1)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        variances = self._variances(parameters)
        distances = actions - parameters[:, : self._size]

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # d log p / d mean = (a - mean) / v;  d log p / d v = ((a - mean)^2 / v - 1) / 2v;  d H / d v = 1 / 2v
            by_means = distances / variances * d_log_probs[:, None]
            by_variances = by_means * distances - d_log_probs[:, None] + d_entropy
            squares = parameters[:, self._size :].square()
            assert self.log_std.grad is not None  # d v / d log_std = 2 features^2 deviations^2
            self.log_std.grad += squares.t() @ (by_variances / variances) * torch.exp(2.0 * self.log_std)
            return torch.cat([by_means, torch.zeros_like(squares)], dim=1)

        return *self.log_probs_and_entropies(parameters, actions), backward

    def _variances(self, parameters: Tensor) -> Tensor:
        features = parameters[:, self._size :].detach()
        return features.square() @ torch.exp(2.0 * self.log_std) + _LEAST_VARIANCE


_LEAST_VARIANCE = 1e-6


class SquashedGaussian(DiagonalGaussian):
    """tanh of a `DiagonalGaussian`; actions are stored before tanh, so no precision is lost.

    The density is that of tanh(action), in (-1, 1): log p = log N(u) - sum log(1 - tanh(u)^2). The entropy has no
    closed form. It is the Gaussian's entropy plus the expected log-determinant, by Gauss-Hermite quadrature.
    Source: Haarnoja et al. 2018, Soft Actor-Critic, arXiv:1801.01290, appendix C.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NODES)
        self._nodes, self._weights = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, entropies = super().log_probs_and_entropies(parameters, actions)
        values, weights = self._at_nodes(parameters)
        return log_probs - _log_determinant(actions).sum(dim=1), entropies + _expected_determinant(values, weights)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        log_probs, entropies, gaussian_backward = super().closed_form(parameters, actions)
        values, weights = self._at_nodes(parameters)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # The log-determinant of a given action does not depend on the parameters. Its expectation does:
            # d log(1 - tanh(u)^2) / du = -2 tanh(u), and u = mean + std node.
            d_parameters = gaussian_backward(d_log_probs, d_entropy)
            d_values = torch.tanh(values) * weights * (-2.0 * d_entropy)
            assert self.log_std.grad is not None
            self.log_std.grad += (d_values * (values - parameters[:, :, None])).sum(dim=(0, 2))
            return d_parameters.add_(d_values.sum(dim=2))

        log_probs = log_probs - _log_determinant(actions).sum(dim=1)
        return log_probs, entropies + _expected_determinant(values, weights), backward

    def _at_nodes(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The nodes of the quadrature as actions before tanh, (B, A, nodes), and their weights."""
        nodes, weights = self._nodes.to(parameters), self._weights.to(parameters)
        return parameters[:, :, None] + torch.exp(self.log_std)[:, None] * nodes, weights


_N_NODES = 16


class Joint(nn.Module):
    """Several independent parts: log-probabilities and entropies are sums over the parts.

    The columns of parameters, noise and actions are those of the parts, in order. Actions are float32 (B, K), with one
    column per choice and per number; choices are integers, which float32 holds exactly.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._parts = list(parts)
        self._is_choice = [isinstance(part, Categorical) for part in parts]  # if so, actions and noise are (B,)
        self._parameters_of = _slices([part.num_parameters for part in self._parts])
        self._columns_of = _slices(
            [1 if choice else part.num_parameters for part, choice in zip(self._parts, self._is_choice, strict=True)]
        )
        self.num_parameters = self._parameters_of[-1].stop

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.concatenate(
            [part.draw_noise(generator, shape).reshape(*shape, -1) for part in self._parts], axis=-1, dtype=np.float32
        )

    def sample(self, parameters: Array, noise: Array) -> Array:
        return self._joined(part.sample(parameters[:, p], drawn) for part, p, drawn in self._with_columns(noise))

    def mode(self, parameters: Array) -> Array:
        return self._joined(
            part.mode(parameters[:, p]) for part, p in zip(self._parts, self._parameters_of, strict=True)
        )

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        of_parts = [
            part.log_probs_and_entropies(parameters[:, p], columns) for part, p, columns in self._with_columns(actions)
        ]
        log_probs, entropies = zip(*of_parts, strict=True)
        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        of_parts = [part.closed_form(parameters[:, p], columns) for part, p, columns in self._with_columns(actions)]
        log_probs, entropies, backwards = zip(*of_parts, strict=True)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            return torch.cat([each(d_log_probs, d_entropy) for each in backwards], dim=1)

        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0), backward

    def _with_columns(self, columns: Any) -> list[tuple[ActionDistribution, slice, Any]]:
        """Each part with the slice of its parameters, and its actions or noise in the shape that the part expects."""
        found = []
        for part, p, c, choice in zip(self._parts, self._parameters_of, self._columns_of, self._is_choice, strict=True):
            own = columns[:, c.start] if choice else columns[:, c]
            found.append((part, p, own.long() if choice and isinstance(own, Tensor) else own))
        return found

    def _joined(self, actions: Any) -> Array:
        return np.concatenate([own.reshape(len(own), -1) for own in actions], axis=1, dtype=np.float32)


def _expected_determinant(values: Tensor, weights: Tensor) -> Tensor:
    return (_log_determinant(values) * weights).sum(dim=(1, 2))


def _log_determinant(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), computed without cancellation."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


def _slices(widths: Sequence[int]) -> list[slice]:
    ends = np.cumsum(widths).tolist()
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
