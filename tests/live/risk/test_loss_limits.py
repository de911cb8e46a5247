"""A loss that reaches its limit ends the session, and it stays ended until a person names what is let go."""

import json
import math

import numpy as np
import pytest

from tests.live.risk.guarded_accounts import NOON, Books, bars, guards_of, order, seconds, session

DAY = np.timedelta64(1, "D")


def after(equities: list[float], *, begin: np.datetime64 = NOON, **settings: object):
    """The last verdict on the account, bar by bar, and the guards."""
    guards = guards_of("A", **settings)
    for i, equity in enumerate(equities):
        verdict = guards.on_account(Books(equity), begin + seconds(60 * i))
    return verdict, guards


@pytest.mark.parametrize(
    ("settings", "equities", "ends"),
    [
        ({"guard_daily_loss": 0.03}, [10_000, 9_701], False),
        ({"guard_daily_loss": 0.03}, [10_000, 9_700], True),
        ({"guard_daily_loss": 0.03}, [10_000, 9_699], True),
        ({"guard_daily_loss": 0.03}, [10_000, 11_000, 9_701], False),  # from the day's beginning, not its highest
        ({"guard_daily_loss_money": 300}, [10_000, 9_700.01], False),
        ({"guard_daily_loss_money": 300}, [10_000, 9_700], True),
        ({"guard_drawdown": 0.1}, [10_000, 12_000, 10_801], False),
        ({"guard_drawdown": 0.1}, [10_000, 12_000, 10_800], True),
        ({"guard_drawdown": 0.1}, [10_000, 12_000, 10_799], True),
        ({}, [10_000, 1], False),
    ],
)
@pytest.mark.parametrize("on_loss", ["hold", "flatten"])
def test_a_loss_ends_the_session_once_it_reaches_the_limit(settings, equities, ends, on_loss):
    verdict, _ = after(equities, guard_on_loss=on_loss, **settings)
    assert verdict.action == (on_loss if ends else "trade")
    assert (verdict.ends is not None) is ends


def test_a_day_begins_with_the_equity_of_the_day_before():
    guards = guards_of("A", guard_daily_loss=0.03)
    assert guards.on_account(Books(10_000), NOON).action == "trade"
    assert guards.on_account(Books(9_800), NOON + seconds(60)).action == "trade"
    # 9,800 less 3 % is 9,506: it is lost overnight.
    assert guards.on_account(Books(9_507), NOON + DAY).action == "trade"
    assert guards.on_account(Books(9_506), NOON + DAY + seconds(60)).action == "flatten"


def test_a_day_is_that_of_the_market_session():
    # A session from 22:00 to 21:00 UTC: midnight of UTC lies in the middle of its day.
    guards, day = guards_of("A", guard_daily_loss=0.03), session("2026-03-02T22:00", "2026-03-03T21:00")
    for time, equity, action in (("2026-03-02T23:58", 10_000, "trade"), ("2026-03-02T23:59", 9_800, "trade"),
                                 ("2026-03-03T00:01", 9_700, "flatten")):  # fmt: skip
        opens = np.datetime64(time, "ns")
        guards.on_bars(bars(100.0, time=opens), opens + seconds(60), day)
        assert guards.on_account(Books(equity), opens).action == action


def test_the_sentence_tells_the_numbers_and_the_way_back():
    verdict, _ = after([10_000, 9_650], guard_daily_loss=0.03)
    assert verdict.ends == (
        "The equity is 9,650.00, and the day began with 10,000.00: the loss of 350.00, 0.035 of it reaches "
        "guard_daily_loss 0.03; positions are closed, and the session ends. Start it with --guard-reset "
        "2026-03-02T12:01:00 to trade again."
    )
    assert [(each.value, each.limit) for each in verdict.refusals] == [(0.035, 0.03)]


def restarted(state: dict, **settings: object):
    guards = guards_of("A", **settings)
    guards.set_state(json.loads(json.dumps(state)))
    return guards


def test_it_stays_ended_on_later_days_and_with_other_settings():
    _, guards = after([10_000, 9_650], guard_daily_loss=0.03)
    for settings in ({"guard_daily_loss": 0.03}, {"guard_daily_loss": 0.9}, {}):
        verdict = restarted(guards.state(), **settings).on_account(Books(20_000), NOON + DAY)
        assert (verdict.action, verdict.ends is None) == ("flatten", False)


def test_a_reset_names_what_it_lets_go_and_nothing_else():
    _, guards = after([10_000, 9_650], guard_daily_loss=0.03)
    wrong = restarted(guards.state(), guard_daily_loss=0.03, guard_reset="2026-03-02T12:00")
    assert wrong.on_account(Books(9_650), NOON + DAY).ends is not None
    again = restarted(guards.state(), guard_daily_loss=0.03, guard_reset="2026-03-02T12:01")
    assert again.on_account(Books(9_650), NOON + DAY).action == "trade"
    # Losses count from there, and the same flag lets the next one go no more.
    assert again.on_account(Books(9_361), NOON + DAY + seconds(60)).action == "trade"
    assert again.on_account(Books(9_360), NOON + DAY + seconds(120)).ends is not None
    assert again.on_account(Books(9_360), NOON + DAY + seconds(180)).ends is not None
    third = restarted(again.state(), guard_daily_loss=0.03, guard_reset="2026-03-02T12:01")
    assert third.on_account(Books(9_360), NOON + 2 * DAY).ends is not None


def test_the_highest_equity_survives_a_restart():
    _, guards = after([10_000, 12_000, 11_900], guard_drawdown=0.1)
    again = restarted(guards.state(), guard_drawdown=0.1)
    assert again.on_account(Books(10_799), NOON + seconds(300)).ends is not None


def test_the_day_goes_on_after_a_restart():
    _, guards = after([10_000, 9_800], guard_daily_loss=0.03)
    again = restarted(guards.state(), guard_daily_loss=0.03)
    assert again.on_account(Books(9_700), NOON + seconds(300)).ends is not None


@pytest.mark.parametrize("equity", [math.nan, math.inf, -math.inf])
def test_an_equity_that_is_no_number_holds_trading(equity):
    guards = guards_of("A", guard_drawdown=0.1)
    assert guards.on_account(Books(equity), NOON).action == "hold"
    assert guards.on_account(Books(10_000), NOON).action == "trade"


def test_what_closes_positions_passes_once_a_limit_tripped():
    _, guards = after([10_000, 9_000], guard_drawdown=0.1)
    books, closes, now = Books(9_000, {"A": 5.0}), [100.0], NOON + seconds(120)
    closing = order("A", -5.0, closing=True)
    assert guards.on_orders([closing], books, closes, now) == ([closing], [])
    assert guards.on_orders([order("A", 1.0)], books, closes, now)[0] == []
