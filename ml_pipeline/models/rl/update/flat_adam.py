"""Adam on one flat vector: the arithmetic of `torch.optim.Adam` without its bookkeeping for many tensors.

One step, one norm and one scaling serve all tensors, which saves most of the time for small networks.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ml_pipeline.models.rl.policies.threads_and_device import in_threads

_SLICE = 1 << 18  # weights that a thread moves at a time: 1.7 million take one thread 2.9 ms, two 2.0 (Zen 4)


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) with beta1 0.9 and beta2 0.999.

    parameters, gradient, mean, square: float (P,). Code that takes the steps in its place must update them, and
    `n_steps`, as it would.
    """

    def __init__(self, parameters: Tensor, gradient: Tensor, *, epsilon: float) -> None:
        """Steps move `parameters` in place along `gradient`, both float (P,)."""
        self.parameters = parameters
        self.gradient = gradient
        self.epsilon = epsilon
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        self._root = torch.empty_like(parameters)
        self.n_steps = 0

    def step(self, learning_rate: float) -> None:
        self.n_steps += 1
        # With the bias corrections c1 and c2, and s = sqrt(c2), two divisions of vectors become one:
        # lr * (m / c1) / (sqrt(v) / s + eps) = (lr * s / c1) * m / (sqrt(v) + s * eps).
        correction = math.sqrt(1.0 - 0.999**self.n_steps)
        size = learning_rate * correction / (1.0 - 0.9**self.n_steps)
        vectors = (self.parameters, self.gradient, self.mean, self.square, self._root)
        length = _SLICE if self.parameters.device.type == "cpu" else len(self.parameters)

        def move(i: int) -> None:
            parameters, gradient, mean, square, root = (v[i * length : (i + 1) * length] for v in vectors)
            with torch.no_grad():  # torch keeps this per thread
                mean.lerp_(gradient, 0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                torch.sqrt(square, out=root).add_(self.epsilon * correction)
                parameters.addcdiv_(mean, root, value=-size)

        in_threads(move, -(-len(self.parameters) // length))

    def state_dict(self) -> dict[str, Any]:
        """Copies, not views."""
        return {"n_steps": self.n_steps, "mean": self.mean.clone(), "square": self.square.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n_steps = state["n_steps"]
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])


def flatten_parameters(parameters: Sequence[Tensor]) -> nn.Parameter:
    """Move parameters into one new vector, in this order, and their gradients into another; return the first.

    Device and dtype must be final: a later `.to()` of the module would separate its parameters from the vector.
    """
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view(parameter.shape)
        parameter.grad = flat.grad[start:end].view(parameter.shape)
        start = end
    return flat
