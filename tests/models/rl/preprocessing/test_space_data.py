"""Spaces through a file that torch reads with weights_only."""

from collections import OrderedDict
from enum import Enum

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.preprocessing.spaces import space_as_data, space_from_data, space_name

SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(np.array([-4.8, -np.inf, 0], np.float32), np.array([4.8, np.inf, 1e-45], np.float32)),
    spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    spaces.Box(0, 255, (36, 36, 3), np.uint8),
    spaces.Box(np.array([[0], [1]], np.int64), np.array([[2**62], [3]], np.int64), dtype=np.int64),
    spaces.Box(0, 2**64 - 1, (1,), np.uint64),
    spaces.Box(-1, 1, (), np.float16),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Discrete(3),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-1, 7]]),
    spaces.MultiDiscrete([2, 3], dtype=np.int32),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(b=spaces.Discrete(2), a=spaces.Box(0, 1, (2,))),
    spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Box(0, 1, (2,)), m=spaces.MultiBinary(2))),
    spaces.Tuple([spaces.Discrete(2), spaces.Dict({0: spaces.Box(0, 1, (2,)), 1: spaces.Tuple([spaces.Discrete(9)])})]),
]


@pytest.mark.parametrize("space", SPACES, ids=space_name)
def test_a_space_comes_back_from_a_file_as_it_was(space, tmp_path):
    torch.save(space_as_data(space), tmp_path / "space.pt")
    read = space_from_data(torch.load(tmp_path / "space.pt", weights_only=True))
    assert read == space
    assert (type(read), read.shape, read.dtype) == (type(space), space.shape, space.dtype)
    read.seed(0)
    assert space.contains(read.sample())


def test_the_keys_of_a_dict_keep_their_order():
    space = spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Discrete(3)))
    assert list(space_from_data(space_as_data(space)).spaces) == ["z", "a"]


def test_a_dtype_of_a_discrete_space_is_kept_where_gymnasium_has_one():
    try:
        space = spaces.Discrete(3, dtype=np.int32)
    except TypeError:
        pytest.skip("this Gymnasium has no dtype for Discrete")
    assert space_from_data(space_as_data(space)).dtype == np.int32


class Side(Enum):
    LEFT = 1


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Sequence(spaces.Discrete(2))),
        spaces.Tuple([spaces.Text(4)]),
        spaces.Dict([(Side.LEFT, spaces.Discrete(2))]),
    ],
    ids=str,
)
def test_what_data_cannot_tell_is_left_out(space):
    assert space_as_data(space) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "Text"},
        {"kind": "Discrete", "n": "three", "start": 0, "dtype": "int64"},
        {"kind": "Box", "shape": [2], "low": [1.0], "high": 2.0, "dtype": "float32"},
        {"kind": "Box", "shape": [2], "low": 0.0, "high": 2.0, "dtype": "float31"},
        {"kind": "Dict", "parts": [["a", {"kind": "Tuple"}]]},
        {"kind": "Dict", "parts": 3},
    ],
)
def test_data_of_no_space_are_one_sentence(data):
    with pytest.raises(UserError, match=r"^These are not the data of a space: [^\n]*\.$"):
        space_from_data(data)


def test_a_name_is_one_line_without_bounds():
    assert space_name(spaces.Box(np.arange(40), np.arange(40) + 1, dtype=np.int64)) == "Box(40,)"
    assert space_name(spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 5]])])) == "Tuple(MultiDiscrete([[2 3] [4 5]]))"
