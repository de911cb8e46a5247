"""A linear layer whose gradient by its weights can be left for later: B samples, I inputs, O outputs.

That gradient is as large as the weights, however few the samples. Instead of one for each part of a minibatch, to be
added, each part leaves the two factors of its own, B (I + O) numbers in place of I O; one product over all samples is
the sum.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, autograd
from torch.autograd.function import once_differentiable


class Factors(NamedTuple):
    """The gradient by weights (O, I) is `gradients` transposed times `inputs`. inputs: (B, I); gradients: (B, O), by
    what the layer gave."""

    inputs: Tensor
    gradients: Tensor


_of_thread = threading.local()


@contextmanager
def factors_of_weights() -> Iterator[list[Factors | None]]:
    """Within the block, `linear` gives this thread no gradient by its weights.

    After the backward pass, the list holds the factors of those gradients, in the order of the forward pass; None of a
    layer that the pass did not reach.
    """
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
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        ctx.factors[ctx.index] = Factors(inputs.detach(), gradient)
        return gradient @ weight, None, gradient.sum(0), None
