"""Whatever ranks send each other arrives as it was."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.models.rl.ranks import pack, unpack

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_TREES = st.recursive(
    _PLAIN,
    lambda each: (
        st.lists(each) | st.lists(each).map(tuple) | st.dictionaries(st.text() | st.integers() | st.none(), each)
    ),
    max_leaves=20,
)


@given(_TREES)
def test_plain_values_keep_their_types(tree):
    received = unpack(pack(tree))
    assert received == tree
    assert repr(received) == repr(tree)  # (1, True) is no (True, 1), and no [1, True]


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        arrays.array_shapes(min_dims=0, min_side=0),
    )
)
def test_arrays_and_tensors_keep_their_bits(array):
    of_array, of_tensor = unpack(pack([array, torch.from_numpy(array)]))
    assert (of_array.dtype, of_array.shape, of_array.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert isinstance(of_tensor, torch.Tensor)
    assert of_tensor.numpy().tobytes() == array.tobytes()
    of_array[...] = 0  # it is our own


def test_a_pickle_stays_marked_as_one():
    received = unpack(pack({"of env 0": PickledState(b"\x80"), "bytes": b"\x80"}))
    assert {name: type(value) for name, value in received.items()} == {"of env 0": PickledState, "bytes": bytes}


def test_numbers_that_are_not_finite_arrive():
    nan, infinity = unpack(pack([math.nan, -math.inf]))
    assert math.isnan(nan)
    assert infinity == -math.inf


def test_what_would_take_code_to_read_is_refused():
    with pytest.raises(TypeError, match="A object cannot be sent to other ranks"):
        pack([object()])
