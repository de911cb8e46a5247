"""Images to features, by the convolutions of the first deep networks for Atari, whose gradients are computed here.

Convolutions have their gradient in closed form, in memory that is kept: autograd takes memory for a minibatch of frames
from the system and returns it, every time, an eighth of a step. The last layer can leave its gradient by weights for
later. It is as large as the weights, however few the samples; so each part of a minibatch leaves its two factors,
B (I + O) numbers in place of I O, and one product over all samples is the sum.
B samples, C channels; images are (B, C, height, width), with their channels last in memory; I inputs and O outputs of
the last layer.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, autograd, nn
from torch.autograd.function import once_differentiable

N_FEATURES = 512


class ImageEncoder(nn.Module):
    """Points 0 to 255, uint8 or float32 (B, C * height * width), to float32 (B, 512).

    Source: Mnih et al. 2015, Human-level control through deep reinforcement learning, extended data table 1.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        channels_last: bool,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """shape: channels, height, width; channels_last: whether the points of a sample come as height, width, C.

        dtype: of the products; weights and features are float32.
        """
        super().__init__()
        self._shape = shape
        self._channels_last = channels_last
        self._dtype = dtype
        channels, height, width = shape
        self.convolutions = nn.ModuleList([
            nn.Conv2d(channels, 32, kernel_size=8, stride=4),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
        ])  # fmt: skip
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.last = nn.Linear(height * width * 64, N_FEATURES)  # its inputs in the order (height, width, channel)
        for layer in (*self.convolutions, self.last):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            assert layer.bias is not None
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, points: Tensor) -> Tensor:
        channels, height, width = self._shape
        if self._channels_last:
            images = points.view(-1, height, width, channels).permute(0, 3, 1, 2)  # to (B, C, height, width)
        else:
            images = points.view(-1, channels, height, width)
        layers = []
        for i, layer in enumerate(self.convolutions):
            assert isinstance(layer, nn.Conv2d)
            weight = layer.weight / 255.0 if i == 0 else layer.weight  # fewer than the points, whose scale it is
            layers.append(Layer(weight.to(self._dtype), self._cast(layer.bias), layer.stride[0]))
        # Of 64 frames of 84x84x4 on one Zen 4 core, ms forward and backward: the three convolutions 31 with channels
        # last and 44 with channels first; the last layer 10.5, and 11.9 as a convolution of 7x7.
        values = convolve(images, layers)
        rows = values.permute(0, 2, 3, 1).flatten(1)  # (B, height * width * 64), without a copy
        return linear(rows, self.last.weight.to(self._dtype), self._cast(self.last.bias)).relu_().float()

    def _cast(self, bias: Tensor | None) -> Tensor:
        assert bias is not None
        return bias.to(self._dtype)


class Layer(NamedTuple):
    """weight: (filters, C, kernel, kernel); bias: (filters,); both of the type that the products are made in."""

    weight: Tensor
    bias: Tensor
    stride: int


def convolve(images: Tensor, layers: Sequence[Layer]) -> Tensor:
    """The last layer's outputs, of the weights' type, differentiable by weights and biases."""
    if not torch.is_grad_enabled():
        return _outputs(images, layers)[-1]
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    return _Convolutions.apply(images, [layer.stride for layer in layers], *tensors)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Inputs (B, I) to (B, O)."""
    factors = getattr(_of_pass, "factors", None)
    if factors is None:
        return F.linear(inputs, weight, bias)
    return _WithoutProduct.apply(inputs, weight, bias, factors)


class Factors(NamedTuple):
    """The gradient by weights (O, I) is `gradients` transposed times `inputs`. inputs: (B, I); gradients: (B, O), by
    what the layer gave."""

    inputs: Tensor
    gradients: Tensor


@contextmanager
def factors_of_weights() -> Iterator[list[Factors | None]]:
    """Within the block, `linear` gives this thread no gradient by its weights.

    After the backward pass, the list holds the factors of those gradients, in the order of the forward pass; None of a
    layer that the pass did not reach.
    """
    _of_pass.factors = []
    try:
        yield _of_pass.factors
    finally:
        _of_pass.factors = None


_of_thread = threading.local()


_of_pass = threading.local()


_backward_of_convolution = torch.ops.aten.convolution_backward
_backward_of_relu = torch.ops.aten.threshold_backward


class _Convolutions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, strides: list[int], *tensors: Tensor) -> Tensor:
        outputs = _outputs(images, _layers(strides, tensors))
        ctx.strides = strides
        ctx.save_for_backward(images, *tensors, *outputs)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        n = len(ctx.strides)
        images, *saved = ctx.saved_tensors
        layers, outputs = _layers(ctx.strides, saved[: 2 * n]), saved[2 * n :]
        inputs = [_as_numbers(images, layers[0].weight.dtype), *outputs[:-1]]
        gradient = _backward_of_relu(gradients[0], outputs[-1], 0)
        of_tensors: list[Tensor] = []
        for i in reversed(range(n)):
            weight, bias, stride = layers[i]
            wanted = [i > 0, True, True]  # by inputs, weights and biases
            gradient, *own = _backward_of_convolution(
                gradient, inputs[i], weight, [len(bias)], [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, wanted
            )
            of_tensors = own + of_tensors
            if i > 0:
                _backward_of_relu.grad_input(gradient, inputs[i], 0, grad_input=gradient)
        return None, None, *of_tensors


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


def _outputs(images: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
    values = _as_numbers(images, layers[0].weight.dtype)
    outputs = []
    for weight, bias, stride in layers:
        values = F.conv2d(values, weight, bias, stride).relu_()
        outputs.append(values)
    return outputs


def _layers(strides: list[int], tensors: Sequence[Tensor]) -> list[Layer]:
    return [Layer(*layer) for layer in zip(tensors[::2], tensors[1::2], strides, strict=True)]


def _as_numbers(images: Tensor, dtype: torch.dtype) -> Tensor:
    """The images in memory of this thread's, which the next call overwrites."""
    if images.device.type != "cpu" or torch.compiler.is_exporting():  # a traced tensor must not stay here
        return images.to(dtype, memory_format=torch.channels_last)
    memory = getattr(_of_thread, "memory", None)
    if memory is None or memory.dtype != dtype or len(memory) < images.numel():
        with torch.inference_mode(False):  # memory of that mode could not be written outside of it
            memory = _of_thread.memory = torch.empty(images.numel(), dtype=dtype)
    batch, channels, height, width = images.shape
    numbers = memory[: images.numel()].view(batch, height, width, channels).permute(0, 3, 1, 2)
    return numbers.copy_(images)
