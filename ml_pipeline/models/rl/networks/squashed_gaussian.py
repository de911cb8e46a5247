"""Real numbers within bounds: tanh of a Gaussian, with its log-determinant. B samples, A action size."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ml_pipeline.models.rl.networks.distributions import Backward, DiagonalGaussian

_N_NODES = 16


class SquashedGaussian(DiagonalGaussian):
    """tanh of a `DiagonalGaussian`; actions are stored before tanh, which loses no precision.

    Densities are those of tanh(action), in (-1, 1): log p = log N(u) - sum log(1 - tanh(u)^2). The entropy has no
    closed form: it is the Gaussian's plus the expectation of the log-determinant, by Gauss-Hermite quadrature.
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
            # The log-determinant of an action depends on no parameter; its expectation does: d log(1 - tanh(u)^2) / du
            # = -2 tanh(u), and u = mean + std node.
            d_parameters = gaussian_backward(d_log_probs, d_entropy)
            d_values = torch.tanh(values) * weights * (-2.0 * d_entropy)
            assert self.log_std.grad is not None
            self.log_std.grad += (d_values * (values - parameters[:, :, None])).sum(dim=(0, 2))
            return d_parameters.add_(d_values.sum(dim=2))

        log_probs = log_probs - _log_determinant(actions).sum(dim=1)
        return log_probs, entropies + _expected_determinant(values, weights), backward

    def _at_nodes(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """The quadrature's actions before tanh, (B, A, nodes), and their weights."""
        nodes, weights = self._nodes.to(parameters), self._weights.to(parameters)
        return parameters[:, :, None] + torch.exp(self.log_std)[:, None] * nodes, weights


def _expected_determinant(values: Tensor, weights: Tensor) -> Tensor:
    return (_log_determinant(values) * weights).sum(dim=(1, 2))


def _log_determinant(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), without the cancellation."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
