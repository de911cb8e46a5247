import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.trading.market.numbers import parse_numbers


def parsed(*columns):
    return [
        [None if bad else value for value, bad in zip(values.tolist(), unread, strict=True)]
        for values, unread in parse_numbers([pl.Series(column) for column in columns])
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([["1.5", "-2", "+3e-2"]], [[1.5, -2, 0.03]]),
        ([["1,5", "2"]], [[1.5, 2]]),
        ([["1.234,5", "1.234", "-1.234.567"]], [[1234.5, 1234, -1234567]]),
        ([["1,234.5", "1,234", "1,234,567"]], [[1234.5, 1234, 1234567]]),
        ([["1,234", "999"]], [[None, 999]]),  # grouped, or with a comma?
        ([["1,234"], ["0,5"]], [[1.234], [0.5]]),  # another column tells
        ([["1,234"], ["0.5"]], [[1234], [0.5]]),
        ([["1,5"], ["2.5"]], [[None], [2.5]]),  # one table, one sign
        ([["1.234", "2.345"]], [[1.234, 2.345]]),
        ([["12,34,5", "1,5"]], [[None, 1.5]]),
        ([["$1.5", " 2 ", "abc", "1.5.2"]], [[1.5, 2, None, None]]),
    ],
)
def test_numbers_are_read_where_their_sign_is_sure(columns, expected):
    assert parsed(*columns) == expected


def test_empty_cells_are_nan_and_not_unread():
    ((values, unread),) = parse_numbers([pl.Series(["", "NaN", "N/A", None, " - ", "none"])])
    assert np.isnan(values).all()
    assert not unread.any()


@given(st.lists(st.floats(-1e9, 1e9).map(lambda value: round(value, 2)), min_size=1))
def test_a_decimal_comma_is_another_spelling_of_the_same_numbers(values):
    pointed = [f"{value:,.2f}" for value in values]
    mirrored = [text.translate(str.maketrans(".,", ",.")) for text in pointed]
    assert parsed(pointed) == parsed(mirrored) == [values]
