"""All weights of a module in one vector, and all gradients in another.

One optimizer step, one norm and one scaling then serve all tensors, which saves most of the time for small networks.
Modules keep their names and shapes: each parameter becomes a view.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
