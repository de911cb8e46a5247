"""Values come back equal and with their types, and what is read cannot be anything else."""

import io

import numpy as np
import pytest
import torch

from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain

VALUES = [
    None,
    True,
    -(2**127),
    float("nan"),
    "ü",
    b"\x00\xff",
    b"",
    [1, (2.5, {"a": None, 3: []})],
    np.float32(1 / 3),
    np.str_("Queen"),
    np.bool_(True),
    np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
    np.zeros((0, 4), np.uint8),
    np.array("2024-01-31", "datetime64[ns]"),
    np.array([b"SF", b"H"]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_equal_with_its_type_also_from_a_file_read_by_weights_only(value):
    file = io.BytesIO()
    torch.save(to_plain(value), file)
    file.seek(0)
    for back in (from_plain(to_plain(value)), from_plain(torch.load(file, weights_only=True))):
        assert type(back) is type(value)
        assert getattr(back, "dtype", None) == getattr(value, "dtype", None)
        np.testing.assert_equal(back, value)


def test_what_comes_back_is_a_copy():
    value = {"array": np.arange(3), "list": [1]}
    data = to_plain(value)
    value["array"][0], value["list"][0] = 9, 9
    back = from_plain(data)
    back["array"] += 1  # writable
    assert (from_plain(data)["array"].tolist(), from_plain(data)["list"]) == ([0, 1, 2], [1])


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_goes_on_where_it_was(kind):
    generator = np.random.Generator(kind(5))
    generator.random(3, dtype=np.float32)
    other = from_plain(to_plain(generator))
    np.testing.assert_array_equal(other.random(9), generator.random(9))


def test_a_value_that_holds_itself_is_not_plain():
    value = []
    value.append({"again": value})
    with pytest.raises(NotPlain, match="holds itself"):
        to_plain(value)


class _Own:
    pass


@pytest.mark.parametrize(
    "value",
    [_Own(), [_Own()], {(1, 2): 3}, {None: 3}, np.array([_Own()]), print, {1, 2}, np.zeros(1, "i4,f4")],
    ids=["object", "list", "tuple key", "no key", "array", "function", "set", "fields"],
)
def test_anything_else_is_refused(value):
    with pytest.raises(NotPlain):
        to_plain(value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_Own(), id="object"),
        {None: 3},
        {None: ("|O", (1,), "8 chars.")},
        {None: ("<f8", (2,), "12345678")},
        {None: ("<f8", (-1,), "12345678")},
        {None: ("<f8", (10**9, 10**9), "")},
        {None: ("generator", {"bit_generator": "system"})},
        {None: ("generator", {})},
        {None: ("no type", (), "")},
        {None: ("|u1", (1,), "€")},
    ],
    ids=str,
)
def test_data_of_something_else_are_refused(data):
    with pytest.raises((ValueError, TypeError)):
        from_plain(data)
