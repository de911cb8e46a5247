import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.dashboard.curves.chart_data import bins_of, sums_per_bin, thinned

numbers = st.floats(-1e6, 1e6, allow_nan=False)


def by_hand(x, y, low, high, n_bins):
    """What is drawn of many points, with loops: per bin the first smallest and the first largest; and both ends."""
    first = max(sum(each < low for each in x) - 1, 0)
    end = min(sum(each <= high for each in x) + 1, len(x))
    if end - first <= 2 * n_bins or not high > low:
        return list(range(first, end))
    extremes = {}
    for i in range(first, end):
        # The same arithmetic, or a point on an edge falls into another bin.
        at = int(min(max((x[i] - low) * (n_bins / (high - low)), 0), n_bins - 1))
        smallest, largest = extremes.get(at, (i, i))
        extremes[at] = (i if y[i] < y[smallest] else smallest, i if y[i] > y[largest] else largest)
    return sorted({first, end - 1, *(i for pair in extremes.values() for i in pair)})


@given(
    points=st.lists(st.tuples(st.integers(0, 200), st.integers(-20, 20)), min_size=1, max_size=120),
    low=st.integers(-10, 210),
    width=st.integers(1, 250),
    n_bins=st.integers(1, 20),
)
def test_each_bin_keeps_its_smallest_and_its_largest_value(points, low, width, n_bins):
    points = sorted(points, key=lambda point: point[0])
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    drawn = thinned(x, y, low=low, high=low + width, n_bins=n_bins)
    assert drawn.tolist() == by_hand(x.tolist(), y.tolist(), low, low + width, n_bins)


def test_of_100_000_points_those_remain_that_a_screen_shows():
    rng = np.random.default_rng(3)
    x, y = np.arange(1.0, 100_001.0), rng.normal(size=100_000).cumsum()
    drawn = thinned(x, y, low=1.0, high=100_000.0, n_bins=1000)
    assert len(drawn) <= 2002
    edges = np.linspace(1.0, 100_000.0, 1001)
    for i in range(1000):
        inside = (x >= edges[i]) & ((x < edges[i + 1]) if i < 999 else (x <= edges[i + 1]))
        of_drawn = drawn[inside[drawn]]
        assert y[of_drawn].min() == y[inside].min()
        assert y[of_drawn].max() == y[inside].max()


def test_a_part_runs_to_the_edges():
    x = np.arange(10.0)
    assert thinned(x, x, low=3.5, high=5.5, n_bins=100).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("n", [0, 1])
def test_next_to_no_points_are_all_drawn(n):
    assert thinned(np.ones(n), np.ones(n), low=1.0, high=1.0, n_bins=5).tolist() == list(range(n))


@given(st.lists(st.tuples(st.integers(0, 50), numbers), max_size=60), st.integers(1, 10))
def test_sums_per_bin_are_those_of_loops(points, n_bins):
    points = sorted(points, key=lambda point: point[0])
    x, spent = np.array([float(p[0]) for p in points]), np.array([p[1] for p in points])
    spent[::7] = np.nan
    at, sums = sums_per_bin(x, {"a": spent}, low=0.0, high=50.0, n_bins=n_bins)
    assert math.isclose(sums["a"].sum(), np.nansum(spent), rel_tol=1e-9, abs_tol=1e-3)
    if len(x) > n_bins:
        which = bins_of(x, low=0.0, high=50.0, n_bins=n_bins)
        assert at.tolist() == [x[which == each].max() for each in np.unique(which)]
        by_bin = [np.nansum(spent[which == each]) for each in np.unique(which)]
        assert np.allclose(sums["a"], by_bin, atol=1e-3)
    else:
        assert at.tolist() == x.tolist()
