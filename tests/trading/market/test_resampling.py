"""Longer bars and sessions, beside polars and pandas, which make them on their own."""

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import Timing, long_bars, make_clock, timeframe_ns
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

MINUTE = np.timedelta64(1, "m")


def _frame(times, seed=0):
    """Random bars at these times."""
    generator = np.random.default_rng(seed)
    closes = 100 * np.exp(generator.normal(0, 0.001, len(times)).cumsum())
    opens = np.r_[100.0, closes[:-1]]
    high, low = np.maximum(opens, closes) * 1.0005, np.minimum(opens, closes) * 0.9995
    return pl.DataFrame(
        {"time": times, "open": opens, "high": high, "low": low, "close": closes}
        | {"volume": generator.integers(1, 100, len(times)).astype(float), "feature_x": np.arange(len(times)) * 1.0}
    )


def _with_gaps(seed=1, days=10):
    """A random walk in minutes, a third of which is missing, and some hours."""
    times = np.arange("2024-03-01", np.datetime64("2024-03-01") + days, MINUTE, dtype="datetime64[m]")
    keep = np.random.default_rng(seed).random(len(times)) < 2 / 3
    keep[500:900] = False
    return times[keep].astype("datetime64[us]")


@pytest.fixture
def written(tmp_path):
    def write(frame, name="A.csv", time="time"):
        path = tmp_path / name
        frame.rename({"time": time}).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
        return path

    return write


FIELDS = ("open", "high", "low", "close", "volume")


def _assert_same(market, expected):
    """The bars are those of the frame, apart from a last one that was not finished."""
    assert len(expected) - market.n_bars in (0, 1)
    expected = expected.head(market.n_bars)
    np.testing.assert_array_equal(market.times, expected["time"].to_numpy())
    for name in FIELDS:
        np.testing.assert_allclose(getattr(market, name)[:, 0], expected[name].to_numpy(), rtol=1e-12)
    np.testing.assert_array_equal(market.columns["feature_x"][:, 0], expected["feature_x"].to_numpy())


AGGREGATES = [
    pl.col("open").first(),
    pl.col("high").max(),
    pl.col("low").min(),
    pl.col("close").last(),
    pl.col("volume").sum(),
    pl.col("feature_x").last(),
]


@pytest.mark.parametrize("timeframe", ["5m", "15m", "1h", "4h", "1d"])
@pytest.mark.parametrize("stamps", ["open", "close"])
def test_longer_bars_are_those_of_polars_and_gaps_stay(written, timeframe, stamps):
    frame = _frame(_with_gaps())
    market = load_market(written(frame), bar_time=stamps, form=BarForm(timeframe=timeframe))
    side = {"open": "left", "close": "right"}[stamps]
    expected = frame.group_by_dynamic("time", every=timeframe, closed=side, label=side).agg(AGGREGATES)
    _assert_same(market, expected)
    assert market.timing == Timing(timeframe_ns(timeframe), stamps, make_clock(None, None))


@pytest.mark.parametrize("timeframe", ["5m", "1h", "1d"])
def test_longer_bars_are_those_of_pandas(written, timeframe):
    pd = pytest.importorskip("pandas")
    frame = _frame(_with_gaps())
    bars = pd.DataFrame(frame.to_dict(as_series=False)).set_index("time")
    rules = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum", "feature_x": "last"}
    expected = (
        bars.resample({"5m": "5min", "1h": "1h", "1d": "1D"}[timeframe]).agg(rules).dropna(subset="close").reset_index()
    )
    market = load_market(written(frame), form=BarForm(timeframe=timeframe))
    _assert_same(market, pl.DataFrame({name: expected[name].to_numpy() for name in expected.columns}))


def test_the_name_of_the_column_says_when_bars_close(written):
    market = load_market(written(_frame(_with_gaps()), time="close time"), form=BarForm(timeframe="1h"))
    assert market.timing.stamped == "close"
    assert str(market.times[0]) == "2024-03-01T00:00:00.000000000"  # the bar from 23:59 to 00:00 is an hour of its own
    assert str(market.times[1]) == "2024-03-01T01:00:00.000000000"
    assert "of 1h; their times mark the close" in market.notices[-1]


def test_an_unfinished_bar_is_left_out_until_it_is_finished(written):
    minutes = np.arange("2024-01-01", "2024-01-01T03:00", dtype="datetime64[m]").astype("datetime64[us]")
    for n_bars, n_hours in ((179, 2), (180, 3)):
        assert load_market(written(_frame(minutes)[:n_bars]), form=BarForm(timeframe="1h")).n_bars == n_hours
    with pytest.raises(UserError, match="The bars of A do not fill one bar of --timeframe 4h; use more bars"):
        load_market(written(_frame(minutes)), form=BarForm(timeframe="4h"))
    with pytest.raises(UserError, match="The bars of A are longer than --timeframe 30s; use a longer timeframe"):
        load_market(written(_frame(minutes)), form=BarForm(timeframe="30s"))
    assert load_market(written(_frame(minutes)), form=BarForm(timeframe="1m")).n_bars == 180


@pytest.mark.parametrize("timeframe", ["5m", "1h", "1d"])
def test_a_file_cut_at_any_time_has_the_same_finished_bars(written, timeframe):
    frame = _frame(_with_gaps(days=4))
    whole = load_market(written(frame), form=BarForm(timeframe=timeframe))
    for n in range(1500, len(frame), 211):
        cut = load_market(written(frame[:n]), form=BarForm(timeframe=timeframe))
        np.testing.assert_array_equal(cut.times, whole.times[: cut.n_bars])
        np.testing.assert_array_equal(cut.close, whole.close[: cut.n_bars])


def _new_york(days=8, start="2024-03-06"):
    """Minutes of all hours over the change of clocks on 2024-03-10."""
    return np.arange(start, np.datetime64(start) + days, MINUTE, dtype="datetime64[m]").astype("datetime64[us]")


def test_a_session_follows_the_clocks_of_its_zone(written):
    """09:30 in New York is 14:30 UTC until 2024-03-09 and 13:30 from the 11th on."""
    form = BarForm(clock=make_clock("09:30-16:00", "America/New_York"))
    frame = _frame(_new_york())
    market = load_market(written(frame), form=form)
    local = pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York").dt.time()
    expected = frame.filter(local.is_between(pl.time(9, 30), pl.time(16, 0), closed="left"))
    np.testing.assert_array_equal(market.times, expected["time"].to_numpy())
    days, first = np.unique(market.times.astype("datetime64[D]"), return_index=True)
    assert len(days) == 8
    assert {str(time)[11:16] for time in market.times[first][:4]} == {"14:30"}
    assert {str(time)[11:16] for time in market.times[first][4:]} == {"13:30"}
    ends = market.times[market.session_end]
    assert [str(time)[11:16] for time in ends] == ["20:59"] * 4 + ["19:59"] * 4
    hours = load_market(written(frame), form=BarForm(timeframe="1h", clock=form.clock))
    assert [str(time)[11:16] for time in hours.times[:8]] == [*(f"{h}:30" for h in range(14, 21)), "14:30"]
    assert hours.n_bars == 8 * 7  # the last of a day has half an hour
    days = load_market(written(frame), form=BarForm(timeframe="1d", clock=form.clock))
    np.testing.assert_array_equal(days.times, np.arange("2024-03-06", "2024-03-14", dtype="datetime64[D]"))
    np.testing.assert_array_equal(days.close[:, 0], market.close[market.session_end, 0])


def test_a_session_may_pass_midnight(written):
    frame = _frame(_new_york(days=3))
    market = load_market(written(frame), form=BarForm(clock=make_clock("22:00-02:00", None)))
    assert {str(time)[11:13] for time in market.times} == {"22", "23", "00", "01"}
    assert [str(time)[:16] for time in market.times[market.session_end]][:3] == [
        "2024-03-06T01:59",
        "2024-03-07T01:59",
        "2024-03-08T01:59",
    ]


def test_times_of_closing_bars_belong_to_the_session_that_they_close_in(written):
    frame = _frame(_new_york(days=2))
    market = load_market(written(frame), bar_time="close", form=BarForm(clock=make_clock("09:30-16:00", None)))
    assert [str(time)[11:16] for time in market.times[[0, -1]]] == ["09:31", "16:00"]


def test_no_hour_is_made_of_two_when_clocks_go_back():
    """01:00 to 02:00 is twice on 2024-11-03 in New York."""
    times = np.arange("2024-11-03T04:00", "2024-11-03T09:00", MINUTE, dtype="datetime64[m]").astype("datetime64[ns]")
    clock = make_clock(None, "America/New_York")
    bars = long_bars(times, Timing(60 * 10**9, "open", clock), timeframe_ns("1h"), causal=False)
    np.testing.assert_array_equal(np.bincount(bars.group), 60)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"timeframe": "7m"}, 'timeframe must be a part of a day like 5m, 15m, 1h or 4h, or 1d or 1w, but got "7m"'),
        ({"timeframe": "fast"}, 'but got "fast"'),
        ({"session": "9-17"}, 'session must be two different times of day like 09:30-16:00, but got "9-17"'),
        ({"session": "10:00-10:00"}, "two different times"),
        ({"timezone": "New_York"}, 'timezone must be a name like America/New_York or UTC, but got "New_York"'),
    ],
)
def test_settings_that_cannot_be(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        TradingConfig(**settings)


def test_settings_reach_the_market(written):
    path = written(_frame(_new_york(days=8)))
    config = TradingConfig(data=path, timeframe="5m", session="09:30-16:00", timezone="America/New_York")
    task = TradingTask(config)
    assert task.account.market.n_bars == 8 * 78
    assert task.account.market.timing.clock == config.form().clock
    with pytest.raises(UserError, match="A has no bar in the session; check --session and --timezone"):
        TradingTask(TradingConfig(data=written(_frame(_new_york(days=1)[:60])), session="09:30-16:00"))


def test_a_day_without_a_session_ends_at_midnight():
    hours = np.arange("2024-01-01", "2024-01-03", dtype="datetime64[h]")
    market = market_from_arrays(["A"], hours, np.ones(48))
    assert list(np.flatnonzero(market.session_end)) == [23, 47]
