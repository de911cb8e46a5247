"""Convolutions, and layers whose gradient by weights is left for later, against autograd through the same layers."""

import threading

import pytest
import torch
import torch.nn.functional as F

from ml_pipeline.models.rl.networks.image_encoder import Layer, convolve, factors_of_weights, linear

STRIDES = (2, 1)


def case(dtype, n_images=5):
    """Frames of 11x11x2 with their channels last, two layers, and what their outputs are multiplied with."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n_images, 11, 11, 2), generator=generator, dtype=torch.uint8).permute(0, 3, 1, 2)
    shapes = ((3, 2, 3, 3), (4, 3, 2, 2))
    tensors = [torch.randn(shape, generator=generator) for s in shapes for shape in (s, s[:1])]
    tensors = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    layers = [Layer(*tensors[2 * i : 2 * i + 2], stride) for i, stride in enumerate(STRIDES)]
    factors = torch.randn(n_images, 4, 4, 4, generator=generator).to(dtype)
    return images, layers, tensors, factors


def by_autograd(images, layers):
    values = images.to(layers[0].weight.dtype, memory_format=torch.channels_last)
    for weight, bias, stride in layers:
        values = F.relu(F.conv2d(values, weight, bias, stride))
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_autograd(dtype):
    images, layers, tensors, factors = case(dtype)
    found = [
        (outputs, *torch.autograd.grad((outputs * factors).sum(), tensors))
        for outputs in (convolve(images, layers), by_autograd(images, layers))
    ]
    for ours, theirs in zip(*found, strict=True):
        assert theirs.abs().max() > 0
        assert torch.equal(ours, theirs)


def test_a_second_forward_before_the_gradient_of_the_first_changes_nothing():
    images, layers, tensors, factors = case(torch.float32)
    expected = torch.autograd.grad((convolve(images, layers) * factors).sum(), tensors)
    outputs = convolve(images, layers)
    with torch.inference_mode():  # as acting does, here with fewer images
        convolve(images[:2].flip(0), layers)
    found = torch.autograd.grad((outputs * factors).sum(), tensors)
    assert all(map(torch.equal, found, expected))


def test_a_thread_that_acted_first_can_learn():
    images, layers, tensors, factors = case(torch.float32)
    errors = []

    def act_and_learn():
        try:
            with torch.inference_mode():
                convolve(images, layers)
            torch.autograd.grad((convolve(images, layers) * factors).sum(), tensors)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act_and_learn)
    thread.start()
    thread.join()
    assert not errors


def test_an_export_leaves_nothing_behind_and_takes_any_number_of_images():
    images, layers, *_ = case(torch.float32)
    layers = [Layer(layer.weight.detach(), layer.bias.detach(), layer.stride) for layer in layers]

    class Convolving(torch.nn.Module):
        def forward(self, images):
            return convolve(images, layers)

    with torch.no_grad():
        before = convolve(images, layers).clone()
        shapes = ({0: torch.export.Dim("rows", min=1)},)
        exported = torch.export.export(Convolving(), (images[:2],), dynamic_shapes=shapes).module()
        assert torch.equal(convolve(images, layers), before)
        torch.testing.assert_close(exported(images), before)


GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(6, 5, generator=GENERATOR)
WEIGHTS = [torch.randn(4, 5, generator=GENERATOR), torch.randn(3, 4, generator=GENERATOR)]


def gradients_of(weights):
    """Of two layers, the second on the first: by the inputs, both biases, and, where they are given, both weights."""
    inputs, *weights = [tensor.clone().requires_grad_() for tensor in (INPUTS, *weights)]
    biases = [torch.zeros(len(weight), requires_grad=True) for weight in weights]
    loss = linear(linear(inputs, weights[0], biases[0]).tanh(), weights[1], biases[1]).square().sum()
    return torch.autograd.grad(loss, [inputs, *biases, *weights], allow_unused=True)


def test_the_product_of_the_factors_is_the_gradient_by_the_weights():
    *others, first, second = gradients_of(WEIGHTS)
    with factors_of_weights() as factors:
        *found, none, neither = gradients_of(WEIGHTS)
    assert none is neither is None
    for ours, theirs in zip(found, others, strict=True):
        torch.testing.assert_close(ours, theirs)
    for (inputs, gradients), expected in zip(factors, (first, second), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(gradients.T @ inputs, expected)


def test_another_thread_and_what_comes_after_get_whole_gradients():
    found = []
    with factors_of_weights():
        thread = threading.Thread(target=lambda: found.append(gradients_of(WEIGHTS)))
        thread.start()
        thread.join()
    found.append(gradients_of(WEIGHTS))
    assert all(gradient is not None for gradients in found for gradient in gradients)
