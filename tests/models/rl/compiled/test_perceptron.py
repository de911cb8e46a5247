"""Activations and their slopes, number by number, against torch in float64."""

from typing import get_args

import numba
import numpy as np
import pytest
import torch

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.compiled import perceptron
from ml_pipeline.models.rl.compiled.layout import CODES, FROM_SUMS
from ml_pipeline.models.rl.compiled.machine import jit_entry
from ml_pipeline.models.rl.networks.mlp import ACTIVATIONS

activate = jit_entry(perceptron.activate.py_func)
through_activation = jit_entry(perceptron.through_activation.py_func)
every_tanh = numba.vectorize(["float32(float32)"])(perceptron.tanh.py_func)
NUMBERS = np.concatenate([np.linspace(-90, 90, 100_001), np.logspace(-37, 0, 10_000), -np.logspace(-37, 0, 10_000)])


def test_tanh_is_exact_to_rounding():
    x = np.concatenate([np.logspace(-37, 1.3, 100_000), np.linspace(0, 12, 100_000)]).astype(np.float32)
    expected = np.tanh(np.concatenate([x, -x]).astype(np.float64))
    np.testing.assert_allclose(every_tanh(np.concatenate([x, -x])), expected, rtol=2e-7, atol=0)


def test_tanh_of_what_is_no_number():
    x = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(every_tanh(x), np.array([np.nan, 1.0, -1.0, 0.0], np.float32))


def of_torch(name, x):
    """Outputs and slopes in float64."""
    inputs = torch.from_numpy(x).double().requires_grad_()
    outputs = ACTIVATIONS[name].module()(inputs)
    (slopes,) = torch.autograd.grad(outputs.sum(), inputs)
    return outputs.detach().numpy(), slopes.numpy()


@pytest.mark.parametrize("name", get_args(Activation))
def test_outputs_and_slopes_are_those_of_torch(name):
    x = NUMBERS.astype(np.float32)
    outputs, slopes = of_torch(name, x)
    found, found_slopes = x.copy(), np.ones_like(x)
    activate(found, CODES[name])
    np.testing.assert_allclose(found, outputs, rtol=3e-7, atol=5e-7)
    through_activation(found_slopes, x if CODES[name] in FROM_SUMS else found, CODES[name])
    np.testing.assert_allclose(found_slopes, slopes, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("name", get_args(Activation))
def test_a_nan_stays_one(name):
    x = np.full(40, np.nan, np.float32)
    activate(x, CODES[name])
    assert np.isnan(x).all()


def test_the_kernel_knows_the_activations_of_torch_that_can_be_asked_for():
    assert {*get_args(Activation)} == {*CODES} == {*ACTIVATIONS}
    assert {name for name, known in ACTIVATIONS.items() if known.from_sums} == {
        name for name, code in CODES.items() if code in FROM_SUMS
    }
