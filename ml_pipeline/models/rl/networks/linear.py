"""A linear layer whose gradient by its weights can be left for later: B samples, I inputs, O outputs.

That gradient is as large as the weights, however few samples it is of. Parts of a minibatch would each write one, to be
added; their factors are smaller, and one product of all is the sum.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, autograd


class Factors(NamedTuple):
    """The gradient by weights (O, I) is `gradients` transposed times `inputs`. inputs: (B, I); gradients: (B, O), by
    what the layer gave."""

    inputs: Tensor
    gradients: Tensor


_of_thread = threading.local()


@contextmanager
def factors_of_weights() -> Iterator[list[Factors]]:
    """Within it and in this thread, the gradients by weights of `linear` are None. The list holds their factors after
    the backward pass, in the order of the forward pass."""
    _of_thread.factors = []
    try:
        yield _of_thread.factors
    finally:
        _of_thread.factors = None


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Inputs (B, I) to (B, O)."""
    factors = getattr(_of_thread, "factors", None)
    if factors is None:
        return F.linear(inputs, weight, bias)
    return _WithoutProduct.apply(inputs, weight, bias, factors)


class _WithoutProduct(autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, factors: list[Factors | None]) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.factors, ctx.index = factors, len(factors)
        factors.append(None)
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        ctx.factors[ctx.index] = Factors(inputs.detach(), gradient)
        return gradient @ weight, None, gradient.sum(0), None
