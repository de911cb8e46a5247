"""The NumPy forward pass against torch's, and the initialization against its definition."""

from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.networks.mlp import NumpyMlp, build_mlp, draw_default_weights
from ml_pipeline.models.rl.update.gradient_steps import flatten_parameters


def mlp(sizes, activation="tanh", output_gain=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return build_mlp(sizes, activation=activation, output_gain=output_gain, generator=generator)


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("sizes", [(4, 64, 64, 2), (3, 1), (5, 16, 1)])
def test_numpy_forward_equals_torch(activation, sizes):
    network = mlp(sizes, activation)
    inputs = np.random.default_rng(0).normal(size=(8, sizes[0])).astype(np.float32)
    before = inputs.copy()
    with torch.no_grad():
        expected = network(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(NumpyMlp(network)(inputs), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(inputs, before)


def test_numpy_forward_sees_weights_that_change_in_place():
    network = mlp((2, 4, 1))
    lean, inputs = NumpyMlp(network), np.ones((1, 2), np.float32)
    before = lean(inputs)
    with torch.no_grad():
        network[-1].bias += 3.0
    np.testing.assert_allclose(lean(inputs), before + 3.0, rtol=1e-6)


def test_weights_are_orthogonal_with_their_gain_and_biases_zero():
    network = mlp((64, 64, 8), output_gain=0.01)
    hidden, output = network[0].weight, network[2].weight
    torch.testing.assert_close(hidden @ hidden.T, 2.0 * torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(output @ output.T, 1e-4 * torch.eye(8), atol=1e-8, rtol=0)
    assert not network[0].bias.any()


@pytest.mark.parametrize("layer", [nn.Linear(5, 7), nn.Conv2d(3, 4, 3), nn.LSTMCell(3, 4), nn.GRUCell(3, 4)])
def test_default_weights_are_those_that_torch_draws(layer):
    torch.manual_seed(3)
    layer.reset_parameters()
    expected = [weight.clone() for weight in layer.parameters()]
    torch.manual_seed(4)
    draw_default_weights([layer, nn.Tanh()], torch.Generator().manual_seed(3))
    assert all(map(torch.equal, layer.parameters(), expected))


def test_the_same_seed_gives_the_same_weights():
    assert torch.equal(mlp((4, 8, 2), seed=3)[0].weight, mlp((4, 8, 2), seed=3)[0].weight)
    assert not torch.equal(mlp((4, 8, 2), seed=3)[0].weight, mlp((4, 8, 2), seed=4)[0].weight)


def test_flattened_parameters_and_gradients_are_views_of_one_vector():
    network, same = mlp((3, 4, 2)), mlp((3, 4, 2))
    flat = flatten_parameters(list(network.parameters()))
    inputs = torch.ones(5, 3)
    torch.testing.assert_close(network(inputs), same(inputs))
    network(inputs).sum().backward()
    same(inputs).sum().backward()
    torch.testing.assert_close(flat.grad, torch.cat([p.grad.flatten() for p in same.parameters()]))
    with torch.no_grad():
        flat.zero_()
    assert not network(inputs).any()
