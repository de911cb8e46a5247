"""Multilayer perceptrons: built in torch, run in NumPy for tiny batches, and run in pairs with their gradients.

B samples, H units of a hidden layer.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ml_pipeline.config.ppo import Activation

Array = np.ndarray


class KnownActivation(NamedTuple):
    """An activation with its derivative.

    apply: changes its argument in place. backward: takes the derivatives by the outputs, and the outputs; returns the
    derivatives by the inputs. from_sums: `backward` takes the inputs in place of the outputs, because the output does
    not determine the slope.
    """

    module: type[nn.Module]
    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    from_sums: bool = False


_aten = torch.ops.aten


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
    """The name of the activation in a `build_mlp` network; tanh if the network has no hidden layer.

    >>> activation_in(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)))
    'silu'
    """
    kinds = {type(layer) for layer in network}
    return next((name for name, known in ACTIVATIONS.items() if known.module in kinds), "tanh")


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


def draw_default_weights(layers: Iterable[nn.Module], generator: torch.Generator) -> None:
    """Replace weights and biases by torch's default ones: uniform, up to 1/sqrt(inputs), in memory cells 1/sqrt(units).

    Layers of other kinds are unchanged.
    """
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = layer.weight[0].numel() ** -0.5
        elif isinstance(layer, nn.RNNCellBase):
            bound = layer.hidden_size**-0.5
        else:
            continue
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)


class NumpyMlp:
    """Forward pass of a `build_mlp` network on a CPU, from NumPy to NumPy, for the few observations of one step.

    uses_torch: whether torch computes the pass; within `one_thread`, its bits do not depend on the number of cores.
    NumPy computes it if OpenBLAS would not divide the products of MOST_ROWS observations among threads; pass at most
    MOST_ROWS then.
    Weights on a CPU are read in place; call `refresh` after they have moved. Weights on another device are copied by
    `refresh`.
    """

    MOST_ROWS = 16

    def __init__(self, network: nn.Sequential) -> None:
        self._network = network
        self._activation = activation_in(network)
        largest = max(layer.weight.numel() for layer in network if isinstance(layer, nn.Linear))
        self.uses_torch = self._activation not in _IN_NUMPY or not _OPENBLAS or largest * self.MOST_ROWS > _UNDIVIDED
        self.refresh()

    def refresh(self) -> None:
        """Read the weights again, after they have moved or changed on another device."""
        layers = [layer for layer in self._network if isinstance(layer, nn.Linear)]
        tensors = [(layer.weight.detach().cpu().T, layer.bias.detach().cpu()[None]) for layer in layers]
        *self._hidden_in_torch, self._last_in_torch = tensors
        *self._hidden, self._last = [(weight.numpy(), bias.numpy()) for weight, bias in tensors]

    def __call__(self, inputs: Array) -> Array:
        """Float32 (N, sizes[0]) in, float32 (N, sizes[-1]) out.

        One row of a 64x64 network takes 2.7 us in NumPy and 16 us in torch; with @, which checks more than dot(), and
        biases of shape (H,), NumPy takes 4.9 us. A product of 8 rows with 512x512 takes 0.02 ms in one thread of torch
        and 0.07 ms in NumPy (two threads: 0.05; Xeon).
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


class PairedMlp:
    """Forward and backward pass of two `build_mlp` networks, each layer of both in one product.

    The parameters and their gradients must lie in memory in `paired_order`.
    """

    def __init__(self, first: nn.Sequential, second: nn.Sequential) -> None:
        hidden, outputs = _paired_layers(first, second)
        self._activation = ACTIVATIONS[activation_in(first)]
        self._hidden = [
            _Layer.of(_stacked(a.weight, b.weight), _stacked(a.bias, b.bias)[:, None], *_stacked_gradients(a, b))
            for a, b in hidden
        ]
        self._outputs = [_Layer.of(layer.weight.detach(), layer.bias.detach(), *_gradients(layer)) for layer in outputs]
        self._buffers: dict[int, _Buffers] = {}
        self._inputs = torch.empty(0)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Float (B, inputs) to the outputs of both networks; `backward` refers to the latest call."""
        below = self._inputs = inputs.expand(2, -1, -1)
        buffers = self._buffers_for(inputs)
        for layer, above, kept in zip(self._hidden, buffers.activations, buffers.kept, strict=True):
            torch.baddbmm(layer.bias, below, layer.transposed, out=above)
            if kept is not above:
                kept.copy_(above)
            below = self._activation.apply(above)
        tops = buffers.tops if self._hidden else below.unbind()
        return [torch.addmm(o.bias, top, o.transposed) for o, top in zip(self._outputs, tops, strict=True)]

    def backward(self, d_outputs: list[Tensor]) -> None:
        """Write the gradients to the `.grad` of the parameters. d_outputs: derivatives by the outputs."""
        buffers = self._buffers_for(self._inputs[0])
        tops = buffers.tops if self._hidden else self._inputs.unbind()
        for output, d_output, top, d_top in zip(self._outputs, d_outputs, tops, buffers.d_tops, strict=True):
            torch.mm(d_output.t(), top, out=output.d_weight)
            torch.sum(d_output, 0, out=output.d_bias)
            torch.mm(d_output, output.weight, out=d_top)
        d_above = buffers.d_top
        for i in range(len(self._hidden) - 1, -1, -1):
            layer = self._hidden[i]
            d_sums = self._activation.backward(d_above, buffers.kept[i])
            torch.bmm(d_sums.transpose(1, 2), buffers.activations[i - 1] if i else self._inputs, out=layer.d_weight)
            torch.sum(d_sums, 1, keepdim=True, out=layer.d_bias)
            if i:
                d_above = torch.bmm(d_sums, layer.weight)

    def _buffers_for(self, inputs: Tensor) -> "_Buffers":
        buffers = self._buffers.get(len(inputs))
        if buffers is None:
            activations = [inputs.new_empty(2, len(inputs), layer.weight.shape[1]) for layer in self._hidden]
            kept = [torch.empty_like(each) for each in activations] if self._activation.from_sums else activations
            d_top = torch.empty_like(activations[-1] if activations else inputs.expand(2, -1, -1))
            tops = activations[-1].unbind() if activations else ()
            buffers = self._buffers[len(inputs)] = _Buffers(activations, kept, tops, d_top, d_top.unbind())
        return buffers


def paired_order(first: nn.Sequential, second: nn.Sequential) -> list[Tensor]:
    """All parameters in the memory order that `PairedMlp` needs: matching hidden layers are neighbors."""
    hidden, outputs = _paired_layers(first, second)
    order = [parameter for a, b in hidden for parameter in (a.weight, b.weight, a.bias, b.bias)]
    return order + [parameter for layer in outputs for parameter in (layer.weight, layer.bias)]


_IN_NUMPY: dict[str, Callable[[Array], object]] = {
    "tanh": lambda sums: np.tanh(sums, out=sums),
    "relu": lambda sums: np.maximum(sums, 0.0, out=sums),
}
"""Activations in NumPy, in place; torch computes the others."""

# OpenBLAS divides a product among threads from 2^19 multiplications on, on some ARM processors from 125,000 on, and a
# product with a single row from 9,216 weights on. The bits then change. Other libraries were not examined.
_OPENBLAS = "openblas" in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
_UNDIVIDED = 120_000


class _Layer(NamedTuple):
    """Weights and bias of one layer, and their gradients. For a pair of layers, each has a first axis of size 2."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    d_weight: Tensor
    d_bias: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor, d_weight: Tensor, d_bias: Tensor) -> "_Layer":
        return _Layer(weight, weight.transpose(-1, -2), bias, d_weight, d_bias)


class _Buffers(NamedTuple):
    """Memory for one batch size B.

    activations: (2, B, H) for each hidden layer. kept: the values from which the slopes of the activations are
    computed: the activations, or the sums before them. d_top: derivatives by the last activations. tops, d_tops: the
    last activations and their derivatives, one view per network.
    """

    activations: list[Tensor]
    kept: list[Tensor]
    tops: tuple[Tensor, ...]
    d_top: Tensor
    d_tops: tuple[Tensor, ...]


def _paired_layers(
    first: nn.Sequential, second: nn.Sequential
) -> tuple[list[tuple[nn.Linear, nn.Linear]], tuple[nn.Linear, nn.Linear]]:
    one, other = ([layer for layer in network if isinstance(layer, nn.Linear)] for network in (first, second))
    *hidden, outputs = zip(one, other, strict=True)
    return hidden, outputs


def _gradients(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.grad, layer.bias.grad


def _stacked_gradients(first: nn.Linear, second: nn.Linear) -> tuple[Tensor, Tensor]:
    weights, biases = zip(_gradients(first), _gradients(second), strict=True)
    return _stacked(*weights), _stacked(*biases)[:, None]


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    """A view (2, *shape) of two tensors of the same shape that are neighbors in memory."""
    assert first.is_contiguous()
    assert second.data_ptr() == first.data_ptr() + first.numel() * first.element_size()
    return first.detach().as_strided((2, *first.shape), (first.numel(), *first.stride()))
