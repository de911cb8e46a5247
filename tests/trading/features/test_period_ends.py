"""Values of whole periods that are joined to their bars are told from those that were known when the period began."""

import numpy as np
import pytest

from benchmarks.leak_alarms import KINDS, honest_columns, leaking_columns, made_market
from ml_pipeline.trading.features.indicators import bars_of
from ml_pipeline.trading.features.innovations import innovations
from ml_pipeline.trading.features.period_ends import periods_of, told_of_period


def told(market, columns):
    """By name, what was found in a column."""
    known = innovations(bars_of(market, 0))
    periods = periods_of(known, market.timing)
    found = {name: told_of_period(values, known, periods) for name, values in columns.items()}
    return {name: each for name, each in found.items() if each}


@pytest.mark.parametrize("n_days", [6, 20, 60])
def test_a_figure_of_the_day_joined_to_its_minutes_is_refused(n_days):
    market = made_market(KINDS[0], 3, minutes=True, n_bars=390 * n_days)
    columns = leaking_columns(market)
    names = [f"{figure} of the day" for figure in ("close", "return", "range", "volume")]
    found = told(market, {name: columns[name] for name in names})
    assert [name for name in names if name not in found or not found[name].impossible] == []
    assert found["close of the day"].sentence == "is the close of the day from its first bar on"


@pytest.mark.parametrize("scale", [1e4, -0.01])
def test_scale_and_unit_hide_nothing(scale):
    market = made_market(KINDS[0], 3, minutes=True, n_bars=390 * 10)
    values = 7 + scale * leaking_columns(market)["range of the day"]
    assert told(market, {"it": values})["it"].impossible


@pytest.mark.parametrize("n_days", [8, 20])
def test_the_way_to_the_close_of_the_day_is_refused_however_it_is_written(n_days):
    """Together with the price now it is the close of the day."""
    market = made_market(KINDS[0], 3, minutes=True, n_bars=390 * n_days)
    now = market.close[:, 0]
    end = leaking_columns(market)["close of the day"]
    ways = {
        "log": np.log(end / now),
        "ratio": now / end,
        "return": end / now - 1,
        "back": now / end - 1,
        "money": end - now,
    }
    found = told(market, ways)
    assert {name: each.sentence.removeprefix("is the log ") for name, each in found.items()} == dict.fromkeys(
        ways, "close of the day from its first bar on"
    ) | {"money": "is the close of the day from its first bar on"}


@pytest.mark.parametrize(
    "name",
    [
        "day closes up",
        "strength at the end of the day",
        "way to the close of the day",
        "strength at the end of the hour",
    ],
)
def test_what_only_follows_from_the_end_of_the_day_is_found(name):
    market = made_market(KINDS[0], 3, minutes=True, n_bars=390 * 60)
    assert [*told(market, {name: leaking_columns(market)[name]})] == [name]


def test_the_end_of_the_week_in_daily_bars_is_found():
    market = made_market(KINDS[0], 0, minutes=False, n_bars=1_000)
    columns = {name: values for name, values in leaking_columns(market).items() if "week" in name}
    assert len(columns) == 7
    assert {*columns} == {*told(market, columns)}


def test_half_of_it_noise_is_found():
    market = made_market(KINDS[0], 0, minutes=False, n_bars=1_500)
    values = leaking_columns(market)["return of the week"]
    noise = np.random.default_rng(0).normal(0, values.std(), 300).repeat(5)
    (found,) = told(market, {"it": values + noise}).values()
    assert "at the first bar of a week, a rank correlation of 0." in found.sentence


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_known_when_the_period_began_raises_no_alarm(kind):
    market = made_market(kind, 2, minutes=False, n_bars=1_000)
    assert told(market, honest_columns(market, 2)) == {}


def test_prices_that_only_grow_make_no_level_suspect():
    market = made_market(KINDS[0], 0, minutes=False, n_bars=500)
    close = 100 * 1.0001 ** np.arange(500.0)
    market = type(market)(**{**vars(market), **dict.fromkeys(("open", "high", "low", "close"), close[:, None])})
    assert told(market, {"close of the week before": np.append(np.full(5, np.nan), close[4:-1:5].repeat(5))}) == {}
