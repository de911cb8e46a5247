"""Late bars, closed markets and half days hold trading, by the times that the broker and its calendar tell."""

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.risk.bar_guards import usual_length_s
from tests.live.risk.guarded_accounts import NOON, bars, guards_of, seconds, session

# New York in winter: 09:30 to 16:00 is 14:30 to 21:00 UTC; the day after Thanksgiving ends at 13:00 there.
WHOLE_DAY = session("2026-11-25T14:30", "2026-11-25T21:00")
HALF_DAY = session("2026-11-27T14:30", "2026-11-27T18:00")


def action_at(guards, time: str, day: TradingSession | None):
    """What is done on a minute bar that opens at a time of UTC and is decided on at its close."""
    opens = np.datetime64(time, "ns")
    return guards.on_bars(bars(100.0, time=opens), opens + seconds(60), day)


@pytest.mark.parametrize(("age_s", "action"), [(0.0, "trade"), (4.999, "trade"), (5.0, "trade"), (5.001, "hold"),
                                               (-5.0, "trade"), (-5.001, "hold")])  # fmt: skip
def test_bars_may_be_as_old_as_the_limit(age_s, action):
    assert guards_of("A", guard_stale_s=5).on_bars(bars(1.0), NOON + seconds(60 + age_s), None).action == action


def test_bars_may_be_as_old_as_they_are_long_unless_a_limit_is_set():
    assert guards_of("A").on_bars(bars(1.0), NOON + seconds(120), None).action == "trade"
    verdict = guards_of("A").on_bars(bars(1.0), NOON + seconds(120.5), None)
    assert verdict.action == "hold"
    assert [each.sentence for each in verdict.refusals] == [
        "Nothing is ordered: the bars closed 60.5 s ago, and guard_stale_s is 60 s."
    ]


def test_bars_that_came_after_the_next_had_opened_are_not_traded_on():
    assert guards_of("A", guard_stale_s=900).on_bars(bars(1.0, late=True), NOON + seconds(61), None).action == "hold"


def test_a_time_that_is_none_is_not_traded_on():
    assert guards_of("A").on_bars(bars(1.0), np.datetime64("NaT", "ns"), None).action == "hold"


@pytest.mark.parametrize(
    ("time", "action"),
    [
        ("2026-11-25T14:29", "hold"),  # it closes as the market opens
        ("2026-11-25T14:30", "trade"),
        ("2026-11-25T20:59", "trade"),  # the last bar: what it decides waits for the next session
        ("2026-11-25T21:00", "hold"),
        ("2026-11-26T16:00", "hold"),  # Thanksgiving
    ],
)
def test_bars_outside_the_session_are_not_traded_on(time, action):
    assert action_at(guards_of("A"), time, WHOLE_DAY).action == action


def test_a_closed_market_is_told_with_its_times():
    verdict = action_at(guards_of("A"), "2026-11-25T22:00", WHOLE_DAY)
    assert [each.sentence for each in verdict.refusals] == [
        "Nothing is ordered: the bars closed at 2026-11-25 22:01:00 UTC, when the market was closed; the nearest "
        "session ended at 2026-11-25 21:00:00 UTC."
    ]


def test_a_market_that_never_closes_is_always_open():
    assert action_at(guards_of("A"), "2026-12-25T03:00", None).action == "trade"


@pytest.mark.parametrize("response", ["hold", "flatten"])
def test_on_a_half_day_positions_are_held_or_closed_as_set(response):
    guards = guards_of("A", sessions=[WHOLE_DAY], guard_half_day=response)
    assert action_at(guards, "2026-11-25T15:00", WHOLE_DAY).action == "trade"
    assert action_at(guards, "2026-11-27T15:00", HALF_DAY).action == response
    assert action_at(guards, "2026-11-27T15:01", HALF_DAY).action == response


def test_a_half_day_is_told_once_and_traded_as_any_other_by_default():
    guards = guards_of("A", sessions=[WHOLE_DAY])
    first, second = (action_at(guards, f"2026-11-27T15:0{i}", HALF_DAY) for i in range(2))
    assert (first.action, second.action, second.refusals) == ("trade", "trade", ())
    assert [(each.sentence, each.warning) for each in first.refusals] == [
        ("The market closes early, at 2026-11-27 18:00:00 UTC: its session lasts 3.5 h, usually 6.5 h.", True)
    ]


def test_a_half_day_is_not_told_again_after_a_restart():
    before, after = (guards_of("A", sessions=[WHOLE_DAY]) for _ in range(2))
    action_at(before, "2026-11-27T15:00", HALF_DAY)
    after.set_state(before.state())
    assert action_at(after, "2026-11-27T15:01", HALF_DAY).refusals == ()


def test_the_longest_session_that_was_met_is_usual_where_no_calendar_is_known():
    guards = guards_of("A", guard_half_day="hold")
    assert action_at(guards, "2026-11-27T15:00", HALF_DAY).action == "trade"
    assert action_at(guards, "2026-11-30T15:00", session("2026-11-30T14:30", "2026-11-30T21:00")).action == "trade"
    assert action_at(guards, "2026-11-27T15:00", HALF_DAY).action == "hold"


def test_one_half_day_does_not_make_half_days_usual():
    days = [WHOLE_DAY, HALF_DAY, session("2026-11-30T14:30", "2026-11-30T21:00")]
    assert usual_length_s(days) == 6.5 * 3_600
    assert usual_length_s([]) is None
