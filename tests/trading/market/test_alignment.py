"""Bars of different length on one clock, as `load_market` puts them there."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.files import load_market


@pytest.fixture
def write(tmp_path):
    def to_file(text, name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def test_it_is_asked_for_where_it_matters_and_only_there(write):
    hours = _hours(24 * 5)
    assert load_market(write(_text(hours, range(1, 121)), "both/H.csv").parent).n_bars == 120
    path = write(_text(hours[::24], range(1, 6)), "both/D.csv").parent
    with pytest.raises(
        UserError,
        match=r"the times of D mark the open or the close .*, because the bars of H have another length; pass",
    ):
        load_market(path)
    as_opens, as_closes = (load_market(path, bar_time=bar_time) for bar_time in ("open", "close"))
    assert [str(m.times[m.tradable[:, 0]][0])[:13] for m in (as_opens, as_closes)] == ["2024-01-01T23", "2024-01-01T00"]


def test_the_name_of_a_column_says_it(write):
    hours = _hours(48)
    day = _text(hours[::6], range(1, 9))
    write(_text(hours, range(1, 49)).replace("time", "Open time"), "both/H.csv")
    market = load_market(write(day.replace("time", "open_time"), "both/Q.csv").parent)
    assert str(market.times[market.tradable[:, 1]][0])[:13] == "2024-01-01T05"
    # A bar that closes at 06:00 is found with the hour from 05:00 to 06:00, which closes then as well.
    market = load_market(write(day.replace("time", "close time"), "both/Q.csv").parent)
    assert str(market.times[market.tradable[:, 1]][1])[:13] == "2024-01-01T05"
    assert str(market.times[0])[:13] == "2023-12-31T23"


def test_assets_named_by_either_end_are_not_mixed(write):
    hours = _hours(10)
    write(_text(hours, range(1, 11)).replace("time", "open_time"), "both/A.csv")
    path = write(_text(hours + np.timedelta64(1, "h"), range(1, 11)).replace("time", "close_time"), "both/B.csv").parent
    market = load_market(path)
    np.testing.assert_array_equal(market.close[:, 0], market.close[:, 1])
    write(_text(hours, range(1, 11)), "both/B.csv")
    with pytest.raises(UserError, match=r"the times of B .* bars of A are stamped at their open; pass"):
        load_market(path)


def test_longer_bars_take_their_place_when_they_close(write):
    hours = np.datetime64("2024-01-01") + np.arange(24 * 30) * np.timedelta64(1, "h")
    write("time,close\n" + "\n".join(f"{hour}:00,{i + 1}" for i, hour in enumerate(hours)), "both/H.csv")
    path = write("time,close\n" + "\n".join(f"{day}:00,{i + 1}" for i, day in enumerate(hours[::24])), "both/D.csv")
    market = load_market(path.parent, bar_time="open")
    day = market.symbols.index("D")
    first = int(np.argmax(market.tradable[:, day]))
    assert str(market.times[first])[:16] == "2024-01-01T23:00"  # the hour that ends with the day
    assert any("D: bars are longer" in notice for notice in market.notices)
    as_closes = load_market(path.parent, bar_time="close")
    assert as_closes.tradable[0].all()


def _text(times, closes):
    return "time,close\n" + "".join(f"{time},{close}\n" for time, close in zip(times, closes, strict=True))


def _hours(n):
    return np.datetime64("2024-01-01T00:00") + np.arange(n) * np.timedelta64(1, "h")


def test_a_file_newest_first_stays_in_step_with_its_like(write):
    hours, closes = _hours(50), range(1, 51)
    write(_text(hours, closes), "both/A.csv")
    market = load_market(write(_text(hours[::-1], closes[::-1]), "both/B.csv").parent)
    np.testing.assert_array_equal(market.times, hours)
    for table in (market.close, market.open, market.tradable):
        np.testing.assert_array_equal(table[:, 0], table[:, 1])


def test_two_files_newest_first_with_different_gaps_keep_their_times(write):
    hours = _hours(60)
    first, second = np.delete(hours, [7, 8])[::-1], np.delete(hours, range(30, 40))[::-1]
    write(_text(first, range(1, 59)), "both/A.csv")
    market = load_market(write(_text(second, range(1, 51)), "both/B.csv").parent)
    np.testing.assert_array_equal(market.times, hours)
    np.testing.assert_array_equal(market.times[market.tradable[:, 1]], second[::-1])


@pytest.mark.parametrize("n_months", [12, 36])
@pytest.mark.parametrize("missing", [[], [5]])
def test_no_month_is_known_before_it_has_ended(write, n_months, missing):
    months = np.delete(np.datetime64("2023-01") + np.arange(n_months), missing)
    days = np.arange("2023-01-01", months[-1] + np.timedelta64(2, "M"), dtype="datetime64[D]")
    write(_text(days, range(1, len(days) + 1)), "both/D.csv")
    market = load_market(
        write(_text(months.astype("datetime64[D]"), range(1, len(months) + 1)), "both/M.csv").parent, bar_time="open"
    )
    shown = market.times[market.tradable[:, market.symbols.index("M")]]
    last_days = (months + np.timedelta64(1, "M")).astype("datetime64[D]") - np.timedelta64(1, "D")
    assert (shown >= last_days).all()
    np.testing.assert_array_equal(shown[:4], last_days[:4])
    assert market.n_bars == len(days)


def test_months_of_different_years_are_of_one_length(write):
    months = (np.datetime64("2023-01") + np.arange(10)).astype("datetime64[D]")
    write(_text(months[:5], range(1, 6)), "both/A.csv")
    market = load_market(write(_text(months[5:], range(1, 6)), "both/B.csv").parent)
    np.testing.assert_array_equal(market.times, months)


def test_a_stray_bar_does_not_split_the_timeline(write):
    hours = _hours(1500)
    stray = np.sort(np.append(hours, hours[700] + np.timedelta64(30, "m")))
    write(_text(hours, range(1, 1501)), "both/A.csv")
    market = load_market(write(_text(stray, range(1, 1502)), "both/B.csv").parent)
    np.testing.assert_array_equal(market.times, stray)


def test_days_before_a_weekend_end_with_their_own_day(write):
    hours = _hours(24 * 28)
    hours = hours[np.is_busday(hours.astype("datetime64[D]"))]
    write(_text(hours, range(1, len(hours) + 1)), "both/H.csv")
    market = load_market(write(_text(hours[::24], range(1, 21)), "both/D.csv").parent, bar_time="open")
    np.testing.assert_array_equal(market.times, hours)
    np.testing.assert_array_equal(market.times[market.tradable[:, market.symbols.index("D")]], hours[23::24])
