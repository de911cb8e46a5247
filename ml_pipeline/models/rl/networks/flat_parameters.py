"""All weights of a module in one vector, and all gradients in another.

One optimizer step, one norm and one scaling then serve every tensor, which for small networks is most of the time.
The module keeps its own names and shapes: each parameter becomes a view.
"""

import torch
from torch import nn


def flatten_parameters(module: nn.Module) -> nn.Parameter:
    """Move the module's parameters into one new vector, its `.grad` likewise; return that vector.

    The module's device and dtype must be final: `.to()` afterwards would part the two.
    """
    parameters = list(module.parameters())
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view(parameter.shape)
        parameter.grad = flat.grad[start:end].view(parameter.shape)
        start = end
    return flat
