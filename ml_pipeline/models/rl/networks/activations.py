"""Activations of hidden layers by name: as modules, and forward and backward without a graph."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

_aten = torch.ops.aten


class KnownActivation(NamedTuple):
    """apply: in place. backward: takes the slopes by the outputs, and the outputs; returns the slopes by the inputs.

    from_sums: `backward` takes the inputs instead, the sums of a layer: the slope does not follow from the output.
    """

    module: type[nn.Module]
    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    from_sums: bool = False


ACTIVATIONS: Mapping[str, KnownActivation] = {
    "tanh": KnownActivation(nn.Tanh, torch.tanh_, _aten.tanh_backward),
    "relu": KnownActivation(nn.ReLU, torch.relu_, lambda slopes, outputs: _aten.threshold_backward(slopes, outputs, 0)),
    "elu": KnownActivation(
        nn.ELU, _aten.elu_, lambda slopes, outputs: _aten.elu_backward(slopes, 1, 1, 1, True, outputs)
    ),
    "gelu": KnownActivation(nn.GELU, _aten.gelu_, _aten.gelu_backward, from_sums=True),
    "silu": KnownActivation(nn.SiLU, _aten.silu_, _aten.silu_backward, from_sums=True),
    "leaky_relu": KnownActivation(
        nn.LeakyReLU,
        _aten.leaky_relu_,
        lambda slopes, outputs: _aten.leaky_relu_backward(slopes, outputs, 0.01, True),
    ),
}


def activation_in(network: nn.Sequential) -> str:
    """The name of the activation in a `build_mlp` network; tanh where it has no hidden layer.

    >>> activation_in(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)))
    'silu'
    """
    kinds = {type(layer) for layer in network}
    return next((name for name, known in ACTIVATIONS.items() if known.module in kinds), "tanh")
