"""The factors of a gradient are those of the gradient that autograd gives."""

import threading

import torch

from ml_pipeline.models.rl.networks.image_encoder import factors_of_weights, linear

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
