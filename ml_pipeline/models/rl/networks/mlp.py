"""Multilayer perceptrons: built for torch, and run in NumPy where a batch is tiny."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import nn

Array = np.ndarray
Activation = Literal["tanh", "relu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def build_mlp(
    sizes: Sequence[int], *, activation: Activation, output_gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers of sizes[0] -> ... -> sizes[-1], activations between them, none at the end.

    Weights are orthogonal, with gain sqrt(2) in hidden layers and `output_gain` in the last; biases are 0.
    Source: Huang et al. 2022, The 37 Implementation Details of PPO, detail 2.
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, output_gain if last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class NumpyMlp:
    """Forward pass of a `build_mlp` network in NumPy, for the few observations of one step.

    On a CPU it reads the very memory of the torch weights; `refresh` finds them again where they have moved, and copies
    those that are on another device.
    """

    def __init__(self, network: nn.Sequential) -> None:
        self._network = network
        self.refresh()

    def refresh(self) -> None:
        """Take the weights anew."""
        *self._hidden, self._last = [
            (layer.weight.detach().cpu().numpy().T, layer.bias.detach().cpu().numpy()[None])
            for layer in self._network
            if isinstance(layer, nn.Linear)
        ]
        self._tanh = any(isinstance(layer, nn.Tanh) for layer in self._network)

    def __call__(self, inputs: Array) -> Array:
        """Float32 (N, sizes[0]) in, float32 (N, sizes[-1]) out.

        One row takes a 64x64 network 2.7 us; 4.9 by @, which asks more than dot(), and broadcasting biases (H,) to it.
        """
        activations = inputs
        for weight, bias in self._hidden:
            activations = activations.dot(weight)
            activations += bias
            if self._tanh:
                np.tanh(activations, out=activations)
            else:
                np.maximum(activations, 0.0, out=activations)
        weight, bias = self._last
        outputs = activations.dot(weight)
        outputs += bias
        return outputs
