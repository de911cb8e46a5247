"""What was written becomes the declared type, or one sentence says why not."""

import datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError


@pytest.mark.parametrize(
    ("written", "hint", "meant"),
    [
        ("3e-4", float, 0.0003),  # YAML 1.1 reads it as text: its floats need a point
        ("1e6", int, 1_000_000),
        (1e6, int, 1_000_000),  # JSON has it as a float
        (3, float, 3.0),
        ("2", int | Literal["auto"], 2),
        ("auto", int | Literal["auto"], "auto"),
        (None, float | None, None),
        ("none", float | None, None),
        (["none"], tuple[str, ...] | None, None),
        (["none"], tuple[str, ...], ()),
        (["BTC", "ETH"], tuple[str, ...] | None, ("BTC", "ETH")),
        ("BTC", tuple[str, ...] | None, ("BTC",)),
        (["64", "1e2"], tuple[int, ...], (64, 100)),
        ("64,1e2", tuple[int, ...], (64, 100)),
        (["[64,", "32]"], tuple[int, ...] | None, (64, 32)),
        ("prices/eur.csv", Path | None, Path("prices/eur.csv")),
        ("0700", str, "0700"),
        (True, bool, True),
        ('{"size": 8, "names": ["a", null]}', dict[str, Any], {"size": 8, "names": ["a", None]}),
        ({"size": 8}, dict[str, Any], {"size": 8}),
    ],
)
def test_what_is_written_is_read_as_the_declared_type(written, hint, meant):
    read = convert(written, hint, name="x")
    assert read == meant
    assert type(read) is type(meant)


@pytest.mark.parametrize(
    ("written", "hint", "sentence"),
    [
        ("abc", int, 'x must be a whole number, but got "abc".'),
        (2.5, int, "x must be a whole number, but got 2.5."),
        (True, int, "x must be a whole number, but got True."),
        (True, float | None, "x must be a number or none, but got True."),
        (None, float, "x must be a number, but got None."),
        ("many", int | Literal["auto"], 'x must be a whole number or auto, but got "many".'),
        ("tahn", Literal["tanh", "relu"], 'x must be tanh or relu, but got "tahn". Did you mean "tanh"?'),
        ("64;64", tuple[int, ...], 'x must be whole numbers, but got "64;64".'),
        ("1,024", tuple[int, ...], 'x must be whole numbers, but got "1,024".'),
        ([64, False], tuple[int, ...], 'x must be whole numbers, but got "64 False".'),
        ({"a": 1}, int, "x must be a whole number, but got {'a': 1}."),
        ([1, 2], int, 'x must be a whole number, but got "1 2".'),
        (700, str | None, "x must be text or none, but got 700; put it in quotes."),
        (
            "{size: 8}",
            dict[str, Any],
            "x must be a JSON object such as '{\"size\": 8}', but got {size: 8}: Expecting property name enclosed in "
            "double quotes in column 2; put single quotes around it for the shell.",
        ),
        ('{"a": ' * 5000, dict[str, Any], "x must be a JSON object, but its values are nested too deeply."),
        ("[8]", dict[str, Any], "x must be named values, such as '{\"size\": 8}', but got [8]."),
        ({8: 1}, dict[str, Any], "x must be named values, such as '{\"size\": 8}', but got {8: 1}."),
        (
            {"day": {"first": [datetime.date(2024, 2, 1)]}},
            dict[str, Any],
            "x must hold numbers, texts, lists and mappings, but day is {'first': [datetime.date(2024, 2, 1)]}; quote "
            "it.",
        ),
        (["BTC", False], tuple[str, ...], 'x must be texts, but got "BTC False"; put it in quotes.'),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(written, hint, sentence):
    with pytest.raises(UserError) as told:
        convert(written, hint, name="x")
    assert str(told.value) == sentence


@given(st.integers())
def test_whole_numbers_survive_being_written(number):
    assert convert(str(number), int, name="x") == number


@given(st.floats(allow_nan=False))
def test_numbers_survive_being_written(number):
    assert convert(repr(number), float, name="x") == number
