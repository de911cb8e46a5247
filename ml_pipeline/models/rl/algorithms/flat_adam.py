"""Adam on one flat vector: the arithmetic of `torch.optim.Adam` without its bookkeeping for many tensors."""

import math
from typing import Any

import torch
from torch import Tensor


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) with beta1 0.9 and beta2 0.999."""

    def __init__(self, parameters: Tensor, gradient: Tensor, *, epsilon: float) -> None:
        """Steps move `parameters` in place along `gradient`, both float (P,)."""
        self._parameters = parameters
        self._gradient = gradient
        self._epsilon = epsilon
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._root = torch.empty_like(parameters)
        self._n_steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        self._n_steps += 1
        self._mean.lerp_(self._gradient, 0.1)
        self._square.mul_(0.999).addcmul_(self._gradient, self._gradient, value=0.001)
        # With the bias corrections c1 and c2, and s = sqrt(c2), two divisions of vectors become one:
        # lr * (m / c1) / (sqrt(v) / s + eps) = (lr * s / c1) * m / (sqrt(v) + s * eps).
        correction = math.sqrt(1.0 - 0.999**self._n_steps)
        torch.sqrt(self._square, out=self._root).add_(self._epsilon * correction)
        size = learning_rate * correction / (1.0 - 0.9**self._n_steps)
        self._parameters.addcdiv_(self._mean, self._root, value=-size)

    def state_dict(self) -> dict[str, Any]:
        """A copy, not views."""
        return {"n_steps": self._n_steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n_steps = state["n_steps"]
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
