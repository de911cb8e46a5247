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

# OpenBLAS divides a product among threads from 2^19 multiplications on, on some ARM processors from 125,000 on, and one
# of a single row from 9,216 weights on; its bits are then others. How other libraries do is not known.
_OPENBLAS = "openblas" in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
_UNDIVIDED = 120_000


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
    """Forward pass of a `build_mlp` network on a CPU, from NumPy to NumPy, for the few observations of one step.

    uses_torch: whether torch computes; within `one_thread` its bits are the same for any number of cores. NumPy is used
    if OpenBLAS divides none of the products of MOST_ROWS observations among threads; pass at most as many.
    On a CPU it reads the memory of the torch weights; call `refresh` after they have moved. From another device,
    `refresh` copies them.
    """

    MOST_ROWS = 16

    def __init__(self, network: nn.Sequential) -> None:
        self._network = network
        self._activation = activation_in(network)
        largest = max(layer.weight.numel() for layer in network if isinstance(layer, nn.Linear))
        self.uses_torch = self._activation not in _IN_NUMPY or not _OPENBLAS or largest * self.MOST_ROWS > _UNDIVIDED
        self.refresh()

    def refresh(self) -> None:
        """Find, or copy, the weights again."""
        layers = [layer for layer in self._network if isinstance(layer, nn.Linear)]
        tensors = [(layer.weight.detach().cpu().T, layer.bias.detach().cpu()[None]) for layer in layers]
        *self._hidden_in_torch, self._last_in_torch = tensors
        *self._hidden, self._last = [(weight.numpy(), bias.numpy()) for weight, bias in tensors]

    def __call__(self, inputs: Array) -> Array:
        """Float32 (N, sizes[0]) in, float32 (N, sizes[-1]) out.

        One row of a 64x64 network takes NumPy 2.7 us, torch 16; 4.9 us with @, which checks more than dot(), and biases
        of shape (H,). The product of 8 rows by 512x512 takes torch 0.02 ms in one thread, NumPy 0.07 (two: 0.05; Xeon).
        """
        if self.uses_torch:
            return self._by_torch(inputs)
        activations = inputs
        for weight, bias in self._hidden:
            activations = activations.dot(weight)
            activations += bias
            _IN_NUMPY[self._activation](activations)
        weight, bias = self._last
        outputs = activations.dot(weight)
        outputs += bias
        return outputs

    @torch.inference_mode()
    def _by_torch(self, inputs: Array) -> Array:
        activations, activate = torch.from_numpy(inputs), ACTIVATIONS[self._activation].apply
        for weight, bias in self._hidden_in_torch:
            activations = activate(torch.addmm(bias, activations, weight))
        weight, bias = self._last_in_torch
        outputs: Array = torch.addmm(bias, activations, weight).numpy()
        return outputs
