"""Columns that follow a figure of later bars are told from those that follow bars so far, in few windows or days."""

import numpy as np
import pytest

from benchmarks.leak_alarms import KINDS, SESSION, honest_columns, made_market, prepared
from ml_pipeline.trading.features.later_figures import LaterFigures
from ml_pipeline.trading.market.data import market_from_arrays


def found_in(market, columns):
    """By name, what later bars a column follows."""
    later = LaterFigures(*prepared(market))
    found = {name: later.told(np.asarray(values, dtype=float)) for name, values in columns.items()}
    return {name: each.what for name, each in found.items() if each}


def ahead(values, span, figure):
    """A figure of the next `span` bars, NaN in the last ones."""
    made = [figure(values[t + 1 : t + 1 + span]) for t in range(len(values) - span)]
    return np.append(made, np.full(span, np.nan))


@pytest.fixture(scope="module")
def days():
    return made_market(KINDS[0], 3, minutes=False, n_bars=900)


@pytest.fixture(scope="module")
def minutes():
    return made_market(KINDS[0], 3, minutes=True, n_bars=20 * SESSION)


def test_what_the_next_60_days_bring_is_named(days):
    close, high, low = days.close[:, 0], days.high[:, 0], days.low[:, 0]
    top, bottom, end = ahead(high, 60, np.max), ahead(low, 60, np.min), ahead(close, 60, lambda part: part[-1])
    found = found_in(
        days,
        {
            "range": (top - bottom) / close,
            "room above, in money": top - close,
            "lowest price": bottom,
            "return in ten classes": np.digitize(end / close, np.nanquantile(end / close, np.linspace(0.1, 0.9, 9))),
        },
    )
    # From the price now on, the return is the close.
    assert found.pop("return in ten classes") in {f"the {figure} of the next 60 bars" for figure in ("close", "return")}
    assert found == {
        "range": "the range over the price of the next 60 bars",
        "room above, in money": "the high of the next 60 bars",
        "lowest price": "the low of the next 60 bars",
    }


def test_an_unround_horizon_is_found_by_one_close_to_it(days):
    close = days.close[:, 0]
    found = found_in(days, {"it": ahead(close, 47, np.mean) / close - 1})
    assert found["it"] in {f"the mean close of the next {n} bars" for n in (46, 47, 48, 49)}


def test_what_the_rest_of_twenty_sessions_brings_is_found(minutes):
    sessions = minutes.close[:, 0].reshape(20, SESSION)
    end = sessions[:, -1:]
    highest_to_come = np.maximum.accumulate(sessions[:, ::-1], axis=1)[:, ::-1]
    columns = {
        "move": np.log(end / sessions),
        "its sign": np.sign(end - sessions),
        "whether it is up": end > sessions,
        "deviation from the day's mean": (sessions - sessions.mean(axis=1, keepdims=True))
        / sessions.std(axis=1, keepdims=True),
        "high to come": highest_to_come,
        "tomorrow's close": np.append(end[1:], [[np.nan]], axis=0) / sessions,
    }
    assert {*found_in(minutes, {name: values.ravel() for name, values in columns.items()})} == {*columns}


@pytest.mark.parametrize("kind", KINDS)
def test_honest_columns_follow_nothing_to_come(kind):
    market = made_market(kind, 4, minutes=False, n_bars=700)
    assert found_in(market, honest_columns(market, 4)) == {}


def test_figures_of_the_bars_so_far_are_not_taken_for_those_to_come(minutes):
    sessions = minutes.close[:, 0].reshape(20, SESSION)
    columns = {
        "move since the open": np.log(sessions / sessions[:, :1]),
        "below the first close": sessions < sessions[:, :1],
        "high so far": np.maximum.accumulate(sessions, axis=1),
        "share of the session that is left": np.tile(np.linspace(1, 0, SESSION), (20, 1)),
    }
    assert found_in(minutes, {name: values.ravel() for name, values in columns.items()}) == {}


def test_opens_that_equal_the_close_before_make_no_column_suspect():
    """Figures that are nearly always 0, as the gap to the next open is here, agree with a label by chance."""
    generator = np.random.default_rng(0)
    close = 100 * np.exp(generator.normal(0, 0.01, 800).cumsum())
    opened = np.append(close[:1], close[:-1])
    opened[[100, 400]] *= 1.01
    times = np.busday_offset("2015-01-05", np.arange(800)).astype("datetime64[ns]")
    market = market_from_arrays(["A"], times, close, open=opened)
    labels = {str(k): generator.integers(0, 2, 800) for k in range(5)}
    assert found_in(market, labels) == {}


def test_a_market_that_its_past_explains_makes_nothing_suspect():
    close = 100 + np.sin(2 * np.pi * np.arange(800) / 20)
    times = np.busday_offset("2015-01-05", np.arange(800)).astype("datetime64[ns]")
    market = market_from_arrays(["A"], times, close)
    assert found_in(market, {"mean of ten": np.convolve(close, np.ones(10) / 10)[:800]}) == {}


def test_short_and_constant_columns_tell_nothing(days):
    late = np.where(np.arange(900) < 850, np.nan, 1.0)
    assert found_in(days, {"constant": np.ones(900), "late": late, "never": np.full(900, np.nan)}) == {}
    short = made_market(KINDS[0], 3, minutes=False, n_bars=40)
    assert found_in(short, {"it": ahead(short.close[:, 0], 2, np.max)}) == {}
