"""Two perceptrons with the same hidden sizes, run forward and backward as one: each layer is one batched product.

No graph is recorded, buffers of activations are reused, and every view is made once: for small networks autograd spends
nearly all its time on these. B samples, H units of a hidden layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.activations import ACTIVATIONS, activation_in


def paired_order(first: nn.Sequential, second: nn.Sequential) -> list[Tensor]:
    """The parameters of both in the order in memory that `PairedMlp` needs: those of a hidden layer side by side."""
    hidden, outputs = _paired_layers(first, second)
    order = [parameter for a, b in hidden for parameter in (a.weight, b.weight, a.bias, b.bias)]
    return order + [parameter for layer in outputs for parameter in (layer.weight, layer.bias)]


class PairedMlp:
    """Forward and backward of two `build_mlp` networks whose parameters lie in `paired_order`, with their gradients."""

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
        """Float (B, inputs) to the outputs of both networks; `backward` belongs to the latest call."""
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
        """Write gradients to the parameters' `.grad`, for these derivatives by the outputs."""
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


class _Layer(NamedTuple):
    """Weights of one layer, its bias and their gradients; for two layers at once, each with a first axis of 2."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    d_weight: Tensor
    d_bias: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor, d_weight: Tensor, d_bias: Tensor) -> "_Layer":
        return _Layer(weight, weight.transpose(-1, -2), bias, d_weight, d_bias)


class _Buffers(NamedTuple):
    """For one batch size: activations (2, B, H), the last of them and its derivative, also as one view per network.

    kept: what the slopes of the activations follow from: themselves, or the sums before them.
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
    """Two tensors of the same shape that lie side by side in memory, as a view of (2, *shape)."""
    assert first.is_contiguous()
    assert second.data_ptr() == first.data_ptr() + first.numel() * first.element_size()
    return first.detach().as_strided((2, *first.shape), (first.numel(), *first.stride()))
