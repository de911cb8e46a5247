"""A pickle is read without importing or calling anything, whatever it holds."""

import collections
import contextlib
import io
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.inert_pickle import Call, Name, as_array, as_dtype, read_inert

ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    np.arange(3, dtype=">i4"),
    np.array([True, False]),
    np.zeros(()),
    np.zeros((0, 3), np.uint8),
    np.float32(3.5),
    np.int64(-4),
]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_plain_data_and_arrays_are_read_as_they_are(protocol):
    plain = {
        "a": [1, -(2**70), 2.5, None, True],
        "b": ((), (1,), (1, 2, 3, 4)),
        7: "é" * 300,
        "c": b"\0\1",
        "same": "a",
    }
    assert read_inert(pickle.dumps(plain, protocol=protocol)) == plain
    for array in ARRAYS:
        found = as_array(read_inert(pickle.dumps(array, protocol=protocol)))
        np.testing.assert_array_equal(found, array)
        assert found.dtype == np.asarray(array).dtype.newbyteorder("=")
        assert as_dtype(read_inert(pickle.dumps(found.dtype, protocol=protocol))) == found.dtype


def test_classes_and_calls_are_only_described(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    assert read_inert(pickle.dumps(Harmful())) == Call(f"{os.mkdir.__module__}.mkdir", (str(tmp_path / "made"),))
    assert read_inert(pickle.dumps(os.path.join)) == Name(f"{os.path.__name__}.join")
    assert read_inert(b"cno.such\nmodule\n.") == Name("no.such.module")
    assert read_inert(pickle.dumps(collections.OrderedDict(b=1, a=2))).entries == {"b": 1, "a": 2}
    assert not (tmp_path / "made").exists()


def test_a_pickle_that_is_cut_anywhere_gets_one_sentence():
    whole = pickle.dumps({"a": ARRAYS[0], "b": [1, (2, "three")]})
    for end in range(len(whole)):
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            read_inert(whole[:end])


@given(st.binary(max_size=60), st.integers(0, 200))
def test_bytes_of_any_kind_are_read_or_refused(noise, at):
    whole = pickle.dumps({"a": ARRAYS[0], "b": [1, (2, "three")]})
    at = min(at, len(whole))
    for pickled in (noise, whole[:at] + noise + whole[at + len(noise) :]):
        with contextlib.suppress(UserError):
            read = read_inert(pickled)
            as_array(read.get("a") if isinstance(read, dict) else read)


def nested(depth: int) -> bytes:
    return b"\x80\x04" + b")" + b"\x85" * depth


SHARED = b")\x94" + b"".join(b"h%c\x86\x94" % level for level in range(60))
"""60 tuples, each of which has the one before it twice: its text has 2**60 parts."""


@pytest.mark.parametrize(
    ("pickled", "sentence"),
    [
        (b"\x80\x04" + SHARED + b"\x8c\x01a\x93.", "damaged or cut short"),  # a STACK_GLOBAL
        (b"\x80\x04\x8c\x01a" + SHARED + b"\x93.", "damaged or cut short"),
        (nested(400_000) + b".", "more than 300,000 instructions"),
        (b"\x80\x04" + b"]" * 140_000 + b"a" * 139_999 + b".", None),
        (b"\x80\x04}" + nested(290_000)[2:] + b"K\x01s.", None),  # a key whose hash would overflow the stack
        (b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b"0N.", None),  # pickle.loads would reserve 32 GB
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", "damaged or cut short"),
        (b"\x80\x04\x82\x01.", "uses the instruction EXT1"),
        (b"\x80\x04(S'os'\nios\nsystem\n.", "uses the instruction"),
        (b"Pname\n.", "uses the instruction PERSID"),
        (b"", "damaged or cut short"),
    ],
    ids=lambda each: each if isinstance(each, str) else "pickle",
)
def test_pickles_that_would_exhaust_the_process_do_not(pickled, sentence):
    if sentence is None:
        read_inert(pickled)
    else:
        with pytest.raises(UserError, match=sentence):
            read_inert(pickled)


@pytest.mark.parametrize(
    "value",
    [
        Name("os.system"),
        Call("os.system", ("true",)),
        Call("numpy.load", ("file",)),
        Call("numpy._core.multiarray.scalar", (Name("numpy.object_"), b"12345678")),
        Call("numpy._core.numeric._frombuffer", (b"1234", Name("numpy.float32"), (2,), "C")),
        Call("numpy._core.multiarray._reconstruct", (), "no state"),
        Call("numpy._core.multiarray.scalar", (Call("numpy.dtype", ("x\n" * 300,)), b"12345678")),
        Call("numpy._core.multiarray.scalar", (Name("numpy.x\n" * 300), b"12345678")),
        [1.0],
        "text",
    ],
)
def test_what_describes_no_array_of_numbers_is_refused_in_a_sentence(value):
    with pytest.raises(UserError, match=r"^the pickle has [^\n]{1,150}$"):
        as_array(value)


def test_the_reader_agrees_with_pickle_on_shared_objects():
    shared = ["x"]
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=4).dump([shared, shared, {"k": shared}])
    first, second, third = read_inert(buffer.getvalue())
    assert first is second is third["k"]
