"""Multilayer perceptrons: built in torch, and run in NumPy for tiny batches."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.networks.activations import ACTIVATIONS, activation_in

Array = np.ndarray

_IN_NUMPY: dict[str, Callable[[Array], object]] = {
    "tanh": lambda sums: np.tanh(sums, out=sums),
    "relu": lambda sums: np.maximum(sums, 0.0, out=sums),
}
"""In place; the others are in torch alone."""


def build_mlp(
    sizes: Sequence[int], *, activation: Activation, output_gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers sizes[0] -> ... -> sizes[-1], with activations between them.

    Weights are orthogonal, with gain sqrt(2) in hidden layers and `output_gain` in the last; biases are 0.
    Source: Huang et al. 2022, The 37 Implementation Details of PPO, detail 2.
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, output_gain if last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, ACTIVATIONS[activation].module()]
    return nn.Sequential(*layers)


class NumpyMlp:
    """Forward pass of a `build_mlp` network in NumPy, for the few observations of one step.

    needs_torch: whether torch computes the activations, whose bits may then depend on its threads.
    On a CPU it reads the memory of the torch weights; call `refresh` after they have moved. From another device,
    `refresh` copies them.
    """

    def __init__(self, network: nn.Sequential) -> None:
        self._network = network
        name = activation_in(network)
        self.needs_torch = name not in _IN_NUMPY
        self._activate = _IN_NUMPY.get(name) or (lambda sums: ACTIVATIONS[name].apply(torch.from_numpy(sums)))
        self.refresh()

    def refresh(self) -> None:
        """Find, or copy, the weights again."""
        *self._hidden, self._last = [
            (layer.weight.detach().cpu().numpy().T, layer.bias.detach().cpu().numpy()[None])
            for layer in self._network
            if isinstance(layer, nn.Linear)
        ]

    def __call__(self, inputs: Array) -> Array:
        """Float32 (N, sizes[0]) in, float32 (N, sizes[-1]) out.

        One row of a 64x64 network takes 2.7 us; 4.9 us with @, which checks more than dot(), and biases of shape (H,).
        """
        activations = inputs
        for weight, bias in self._hidden:
            activations = activations.dot(weight)
            activations += bias
            self._activate(activations)
        weight, bias = self._last
        outputs = activations.dot(weight)
        outputs += bias
        return outputs
