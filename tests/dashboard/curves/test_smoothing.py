import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.dashboard.curves.chart_data import smooth


def one_after_another(y, w):
    """TensorBoard's debiased moving average."""
    total, weight, found = 0.0, 0.0, []
    for value in y:
        total, weight = total * w + (1 - w) * value, weight * w + 1 - w
        found.append(total / weight)
    return found


@given(st.lists(st.floats(-1e3, 1e3), max_size=400), st.sampled_from([0.01, 0.3, 0.6, 0.9, 0.99, 0.9999]))
def test_it_is_the_average_of_one_value_after_another(y, w):
    assert np.allclose(smooth(np.array(y), w).values, one_after_another(y, w), atol=1e-6)


@pytest.mark.parametrize("w", [0.2, 0.9])
def test_it_goes_on_from_its_sum(w):
    y = np.random.default_rng(1).normal(size=1000)
    before = smooth(y[:900], w)
    after = (before.sum * w + (1 - w) * y[900]) / (before.weight * w + 1 - w)
    assert after == pytest.approx(one_after_another(y[:901], w)[-1], abs=1e-9)


def test_without_a_weight_nothing_is_smoothed():
    assert smooth(np.array([1.0, 5.0]), 0.0).values.tolist() == [1.0, 5.0]
