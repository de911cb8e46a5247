"""Convolutions with ReLU, and their gradient in closed form, in memory that is kept.

Autograd takes memory for a minibatch of frames from the system and returns it, every time: an eighth of a step. Here
images become floats in memory that each thread keeps, and gradients pass a ReLU in place.
B samples; images are (B, C, height, width), with their channels last in memory.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_backward_of_convolution = torch.ops.aten.convolution_backward
_backward_of_relu = torch.ops.aten.threshold_backward


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


def _outputs(images: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
    values = _as_numbers(images, layers[0].weight.dtype)
    outputs = []
    for weight, bias, stride in layers:
        values = F.conv2d(values, weight, bias, stride).relu_()
        outputs.append(values)
    return outputs


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


def _layers(strides: list[int], tensors: Sequence[Tensor]) -> list[Layer]:
    return [Layer(*layer) for layer in zip(tensors[::2], tensors[1::2], strides, strict=True)]


_of_thread = threading.local()


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
