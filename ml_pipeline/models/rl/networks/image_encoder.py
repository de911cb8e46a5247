"""From images to features: the convolutions of NatureCNN, whose gradients are computed here.

The gradient of the convolutions is computed in closed form, in memory that is reused. autograd would allocate memory
for each minibatch of frames and return it to the system, which takes an eighth of a step.
The gradient by the weights of the last layer can be left for later. It is as large as the weights, however few samples
there are. Each part of a minibatch therefore keeps its two factors, B (I + O) numbers in place of I O, and one product
over all samples gives the sum.
B samples, C channels; I inputs and O outputs of the last layer. Images are (B, C, height, width), with channels last in
memory.
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
    """From pixels 0 to 255, uint8 or float32 (B, C * height * width), to features, float32 (B, 512).

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
        """shape: channels, height, width. channels_last: True if the pixels of a sample come as height, width, C.

        dtype: the type of the products; weights and features are float32.
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
            weight = layer.weight / 255.0 if i == 0 else layer.weight  # scales the pixels, of which there are more
            layers.append(Layer(weight.to(self._dtype), self._cast(layer.bias), layer.stride[0]))
        # 64 frames of 84x84x4 on one Zen 4 core, forward and backward: the three convolutions take 31 ms with channels
        # last and 44 ms with channels first; the last layer takes 10.5 ms, and 11.9 ms as a convolution of 7x7.
        values = convolve(images, layers)
        rows = values.permute(0, 2, 3, 1).flatten(1)  # (B, height * width * 64), without a copy
        return linear(rows, self.last.weight.to(self._dtype), self._cast(self.last.bias)).relu_().float()

    def _cast(self, bias: Tensor | None) -> Tensor:
        assert bias is not None
        return bias.to(self._dtype)


class Layer(NamedTuple):
    """weight: (filters, C, kernel, kernel). bias: (filters,). Both have the type of the products."""

    weight: Tensor
    bias: Tensor
    stride: int


def convolve(images: Tensor, layers: Sequence[Layer]) -> Tensor:
    """The outputs of the last layer, in the type of the weights, differentiable by weights and biases."""
    if not torch.is_grad_enabled():
        return _outputs(images, layers)[-1]
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    return _Convolutions.apply(images, [layer.stride for layer in layers], *tensors)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """From inputs (B, I) to outputs (B, O)."""
    factors = getattr(_of_pass, "factors", None)
    if factors is None:
        return F.linear(inputs, weight, bias)
    return _WithoutProduct.apply(inputs, weight, bias, factors)


class Factors(NamedTuple):
    """The gradient by the weights, (O, I), is `gradients` transposed times `inputs`.

    inputs: (B, I). gradients: (B, O), by the outputs of the layer.
    """

    inputs: Tensor
    gradients: Tensor


@contextmanager
def factors_of_weights() -> Iterator[list[Factors | None]]:
    """Within the block, `linear` computes no gradients by its weights in this thread.

    After the backward pass, the list holds the factors of these gradients, in the order of the forward pass, and None
    for each layer that the backward pass did not reach.
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
            wanted = [i > 0, True, True]  # gradients by inputs, weights and biases
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
    """The images as numbers, in memory of this thread that the next call overwrites."""
    if images.device.type != "cpu" or torch.compiler.is_exporting():  # a traced tensor must not be kept
        return images.to(dtype, memory_format=torch.channels_last)
    memory = getattr(_of_thread, "memory", None)
    if memory is None or memory.dtype != dtype or len(memory) < images.numel():
        with torch.inference_mode(False):  # memory allocated in inference mode cannot be written outside of it
            memory = _of_thread.memory = torch.empty(images.numel(), dtype=dtype)
    batch, channels, height, width = images.shape
    numbers = memory[: images.numel()].view(batch, height, width, channels).permute(0, 3, 1, 2)
    return numbers.copy_(images)
