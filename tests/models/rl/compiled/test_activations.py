"""Activations, number by number."""

import numba
import numpy as np

from ml_pipeline.models.rl.compiled import activations

every_tanh = numba.vectorize(["float32(float32)"])(activations.tanh.py_func)


def test_tanh_is_exact_to_rounding():
    x = np.concatenate([np.logspace(-37, 1.3, 100_000), np.linspace(0, 12, 100_000)]).astype(np.float32)
    expected = np.tanh(np.concatenate([x, -x]).astype(np.float64))
    np.testing.assert_allclose(every_tanh(np.concatenate([x, -x])), expected, rtol=2e-7, atol=0)


def test_tanh_of_what_is_no_number():
    x = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(every_tanh(x), np.array([np.nan, 1.0, -1.0, 0.0], np.float32))
