"""What is packed is what comes out again, by an independent reading of the format."""

import json
import math
import zlib
from base64 import b64decode
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.reporting.interactive_page import (
    pack_exactly,
    pack_numbers,
    pack_times,
    pack_whole_numbers,
    pack_words,
)


def unpacked(column):
    planes = zlib.decompress(b64decode(column["data"]))
    size = column["size"]
    folded = [sum(planes[plane * size + i] << (8 * plane) for plane in range(4)) for i in range(size)]
    levels = accumulate(-(each + 1) // 2 if each % 2 else each // 2 for each in folded)
    numbers = [
        None if column["missing"] and level == 0 else column["first"] + column["step"] * level for level in levels
    ]
    return [column["words"][int(which)] for which in numbers] if "words" in column else numbers


@given(st.lists(st.floats(-1e12, 1e12) | st.just(float("nan"))))
def test_numbers_come_out_to_a_small_part_of_their_range(values):
    column = json.loads(json.dumps(pack_numbers(values)))
    read = [float("nan") if value is None else value for value in unpacked(column)]
    finite = [value for value in values if not math.isnan(value)]
    span = max(finite) - min(finite) if finite else 0.0
    largest = max(map(abs, finite), default=0.0)
    np.testing.assert_allclose(read, values, rtol=0, atol=span / 2**18 + 1e-9 * largest + np.finfo(float).tiny)


def test_what_is_not_finite_is_missing():
    assert unpacked(pack_numbers([np.inf, 1.0, np.nan, -np.inf])) == [None, pytest.approx(1.0), None, None]


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_whole_numbers_are_exact(values):
    assert unpacked(json.loads(json.dumps(pack_whole_numbers(values)))) == values


def test_times_are_exact_seconds():
    times = np.array(["1969-12-31T23:55", "2024-03-01T00:00", "2024-03-01T00:05"], dtype="datetime64[ns]")
    assert unpacked(pack_times(times)) == times.astype("datetime64[s]").astype(int).tolist()


@given(st.lists(st.text(max_size=5)))
def test_words_come_out_in_their_order(words):
    assert unpacked(json.loads(json.dumps(pack_words(words)))) == words


def test_neighbours_that_are_too_far_apart_are_refused():
    with pytest.raises(ValueError, match=r"are 2\*\*31 or more steps apart"):
        pack_whole_numbers([0, 2**40 + 1, 1])


def test_a_hundred_thousand_bars_of_a_walk_take_little_room():
    walk = 1e4 * np.exp(np.random.default_rng(0).normal(0, 0.001, 100_000).cumsum())
    assert len(pack_numbers(walk)["data"]) < 300_000
    minutes = np.datetime64("2020-01-01", "s") + np.arange(100_000) * np.timedelta64(60, "s")
    assert len(pack_times(minutes)["data"]) < 2_000


def test_exact_numbers_keep_every_digit_beside_any_other():
    values = [1e-5, 0.1 + 0.2, -1e12, float("nan"), float("inf")]
    assert json.loads(json.dumps(pack_exactly(values)))["plain"] == [1e-5, 0.1 + 0.2, -1e12, None, None]
