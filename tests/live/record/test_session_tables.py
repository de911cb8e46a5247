"""The tables of a session: the bytes of an evaluation's, and what `train` reads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.live.record.session_record import BarLines, GrowingFile, LedgerLines
from ml_pipeline.trading.accounts.ledger import LedgerRecorder, LedgerRow
from ml_pipeline.trading.evaluation.report import write_ledger
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.timeframes import Timing

numbers = st.floats(allow_nan=False, allow_infinity=False)
prices = st.one_of(st.just(0.0), st.just(float("nan")), st.floats(1e-9, 1e12))


@st.composite
def rows(draw: st.DrawFn) -> tuple[LedgerRow, ...]:
    def per_symbol(of: st.SearchStrategy[float]) -> list[float]:
        return [draw(of), draw(of)]

    return tuple(
        LedgerRow(
            time=np.datetime64("2024-03-01T09:30:00", "ns") + np.timedelta64(i, "m"),
            equity=draw(numbers),
            cash=draw(numbers),
            costs=draw(st.floats(0, 1e9)),
            closes=per_symbol(prices),
            positions=per_symbol(numbers),
            filled=per_symbol(numbers),
            fill_prices=per_symbol(prices),
            half_spreads=per_symbol(st.floats(0, 0.5)),
            exited=per_symbol(numbers),
            exit_prices=per_symbol(prices),
            interest_days=draw(st.floats(0, 9)),
        )
        for i in range(draw(st.integers(1, 4)))
    )


@given(rows())
def test_rows_written_one_by_one_have_the_bytes_of_the_whole_ledger(tmp_path_factory, ledger):
    path = tmp_path_factory.getbasetemp() / "whole.csv"
    recorder = LedgerRecorder(["A", "B"], quotes=True, exits=True, by_day=True)
    lines = LedgerLines(["A", "B"], quotes=True, exits=True, by_day=True)

    text = lines.header()
    for row in ledger:
        recorder.append(row)
        text += lines.line(row)

    write_ledger(path, recorder.ledger())
    assert text.encode() == path.read_bytes()


@pytest.mark.parametrize("stamped", ["open", "close"])
def test_bars_are_read_back_as_they_were_written(tmp_path, stamped):
    times = np.datetime64("2024-03-01T09:30", "ns") + np.arange(4) * np.timedelta64(1, "m")
    closes = np.array([[1.1, 7.0], [1.2, np.nan], [1 / 3, 7.5], [1.3, 8.0]])
    market = market_from_arrays(
        ["A", 'B,"C'],
        times,
        closes,
        open=closes * 0.999,
        high=closes * 1.01,
        low=closes * 0.99,
        volume=np.nan_to_num(closes * 10, nan=0.0),
        columns={"feature_mood": closes - 5},
        timing=Timing(60 * 10**9, stamped),
    )
    lines = BarLines(market.symbols, market.timing, quotes=False, columns=["feature_mood"])

    (tmp_path / "bars.csv").write_text("".join(lines.file_lines(bar_sets_of(market))))
    again = load_market(tmp_path / "bars.csv")

    assert again.symbols == market.symbols
    assert again.timing == market.timing
    for name in ("times", "open", "high", "low", "close", "volume", "tradable"):
        np.testing.assert_array_equal(getattr(again, name), getattr(market, name), err_msg=name)
    mood = market.columns["feature_mood"]
    np.testing.assert_array_equal(again.columns["feature_mood"][market.tradable], mood[market.tradable])


def test_quotes_are_read_back_as_bid_and_ask(tmp_path):
    times = np.datetime64("2024-03-01T09:30:00.250", "ns") + np.arange(3) * np.timedelta64(1, "m")
    market = market_from_arrays(["A"], times, np.array([1.1, 1.2, 1.3]), half_spread=np.array([1e-4, 2e-4, 3e-4]))
    lines = BarLines(["A"], market.timing, quotes=True, columns=())

    (tmp_path / "bars.csv").write_text("".join(lines.file_lines(bar_sets_of(market))))
    again = load_market(tmp_path / "bars.csv")

    np.testing.assert_array_equal(again.times, times)
    assert again.half_spread is not None
    np.testing.assert_allclose(again.half_spread, [[1e-4], [2e-4], [3e-4]], rtol=1e-9)


def bar(*, present: bool):
    market = market_from_arrays(["A"], [np.datetime64("2024-03-01")], np.array([1.0]))
    (bars,) = bar_sets_of(market)
    return bars if present else replace(bars, close=np.array([np.nan]))


def test_a_time_without_bars_has_no_line():
    lines = BarLines(["A"], Timing(60 * 10**9, "open"), quotes=False, columns=())

    assert lines.lines(bar(present=True)).count("\n") == 1
    assert not lines.lines(bar(present=False))


@pytest.mark.parametrize(
    "left",
    [None, "", "a\n", "a\nb\n", "a\nb\nc", "a\nb\nc\n", "a\nb\nc\nd\n", "a\nx\nc\n", "a\nb\ncc", "\ufffd"],
)
def test_a_file_that_a_kill_left_holds_the_lines_of_the_journal_again(tmp_path, left):
    path: Path = tmp_path / "lines"
    if left is not None:
        path.write_text(left)

    file = GrowingFile(path, (line for line in ("a\n", "b\n", "c\n")))
    file.add("d\n")
    file.close()

    assert path.read_text() == "a\nb\nc\nd\n"


def test_a_file_torn_within_a_character_is_made_whole(tmp_path):
    (tmp_path / "lines").write_bytes("é\né".encode()[:-1])

    GrowingFile(tmp_path / "lines", iter(["é\n", "é\n"])).close()

    assert (tmp_path / "lines").read_text(encoding="utf-8") == "é\né\n"
