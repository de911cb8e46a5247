"""Symbols whose prices cannot be, whose quotes cross or whose price jumps are not traded on that bar; others are."""

import math

import numpy as np
import pytest

from ml_pipeline.live.risk.guards import Guards
from tests.live.risk.guarded_accounts import NOON, Books, bars, guards_of, order, seconds


def tradable(guards: Guards, closes: list[float], **fields: object) -> list[str]:
    """The symbols that an order may be sent for on these bars."""
    moment = NOON + seconds(60)
    guards.on_bars(bars(*closes, **fields), moment, None)
    symbols = ["A", "B", "C"][: len(closes)]
    last = [close if close > 0 and math.isfinite(close) else 100.0 for close in closes]
    return [each.symbol for each in guards.on_orders([order(s, 1.0) for s in symbols], Books(), last, moment)[0]]


@pytest.mark.parametrize("field", ["open", "high", "low", "close"])
@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf, 0.0, -5.0])
def test_an_impossible_price_keeps_its_symbol_out(field, price):
    if field == "close":
        assert tradable(guards_of("A", "B"), [100.0, price], open=[100.0, 100.0]) == ["A"]
    else:
        assert tradable(guards_of("A", "B"), [100.0, 100.0], **{field: [100.0, price]}) == ["A"]


@pytest.mark.parametrize("volume", [math.nan, math.inf, -1.0])
def test_an_impossible_volume_keeps_its_symbol_out(volume):
    assert tradable(guards_of("A", "B"), [100.0, 100.0], volume=[0.0, volume]) == ["A"]


def test_a_high_below_the_low_keeps_its_symbol_out():
    guards = guards_of("A", "B")
    assert tradable(guards, [100.0, 100.0], high=[101.0, 99.0], low=[99.0, 101.0]) == ["A"]
    verdict = guards.on_bars(bars(100.0, 100.0, high=[101.0, 99.0], low=[99.0, 101.0]), NOON, None)
    assert [each.sentence for each in verdict.refusals] == [
        "B is not traded on this bar: its high is 99, below its low of 101."
    ]


def test_a_symbol_without_a_bar_is_no_impossible_price():
    assert tradable(guards_of("A", "B"), [100.0, math.nan], volume=[1.0, math.nan]) == ["A", "B"]


def test_every_bar_is_judged_anew():
    guards = guards_of("A")
    assert tradable(guards, [100.0], open=[math.inf]) == []
    assert tradable(guards, [100.0]) == ["A"]


@pytest.mark.parametrize(("half_spread", "passes"), [(0.0, True), (0.01, True), (-1e-6, False), (1.0, False),
                                                     (math.nan, True), (math.inf, False)])  # fmt: skip
def test_crossed_quotes_keep_their_symbol_out(half_spread, passes):
    expected = ["A", "B"] if passes else ["A"]
    assert tradable(guards_of("A", "B"), [100.0, 100.0], half_spread=[0.0, half_spread]) == expected


def test_a_crossed_quote_tells_by_how_much():
    verdict = guards_of("A").on_bars(bars(100.0, half_spread=[-0.001]), NOON + seconds(60), None)
    assert [each.sentence for each in verdict.refusals] == [
        "A is not traded on this bar: its bid is above its ask by 0.002 of the price."
    ]


@pytest.mark.parametrize(("close", "passes"), [(109.999, True), (110.0, True), (110.001, False), (90.001, True),
                                               (90.0, True), (89.999, False)])  # fmt: skip
def test_a_price_may_move_up_to_the_limit(close, passes):
    guards = guards_of("A", guard_price_jump=0.1)
    assert tradable(guards, [100.0]) == ["A"]
    assert tradable(guards, [close]) == (["A"] if passes else [])


def test_a_true_jump_keeps_a_symbol_out_for_one_bar_and_a_wrong_price_for_two():
    guards = guards_of("A", "B", guard_price_jump=0.1)
    seen = [tradable(guards, closes) for closes in ([100.0, 50.0], [120.0, 500.0], [121.0, 50.0], [122.0, 50.0])]
    assert seen == [["A", "B"], [], ["A"], ["A", "B"]]


def test_the_price_before_a_gap_counts():
    guards = guards_of("A", guard_price_jump=0.1)
    assert tradable(guards, [100.0]) == ["A"]
    assert tradable(guards, [math.nan]) == ["A"]
    assert tradable(guards, [120.0]) == []


def test_history_warms_the_guard_up():
    guards = guards_of("A", guard_price_jump=0.1)
    guards.note_history(bars(100.0))
    assert tradable(guards, [120.0]) == []


def test_a_jump_is_known_across_a_restart():
    before, after = (guards_of("A", "B", guard_price_jump=0.1) for _ in range(2))
    tradable(before, [100.0, math.nan])
    after.set_state(before.state())
    assert tradable(after, [120.0, 5.0]) == ["B"]


def swinging(n: int) -> list[float]:
    """Closes that change by exactly 1 % a bar: up and down in turn, so that the deviation is 1 %."""
    closes = [100.0]
    for i in range(n):
        closes.append(closes[-1] * (1.01 if i % 2 == 0 else 0.99))
    return closes


@pytest.mark.parametrize(("change", "passes"), [(0.0299, True), (0.0301, False), (-0.0299, True), (-0.0301, False)])
def test_a_price_may_move_by_so_many_deviations(change, passes):
    guards = guards_of("A", guard_price_jump_deviations=3.0)
    closes = swinging(50)
    for close in closes:
        guards.note_history(bars(close))
    assert tradable(guards, [closes[-1] * (1 + change)]) == (["A"] if passes else [])


def test_too_few_changes_make_no_deviation():
    guards = guards_of("A", guard_price_jump_deviations=3.0)
    for close in swinging(18):
        guards.note_history(bars(close))
    assert tradable(guards, [1_000.0]) == ["A"]


def test_one_wrong_price_does_not_hide_the_next():
    guards = guards_of("A", guard_price_jump_deviations=3.0)
    for close in swinging(50):
        guards.note_history(bars(close))
    # 1 % counts as 3 % at most: the deviation stays below 1.1 %, and 4 % is above three of it.
    assert tradable(guards, [1_000.0]) == []
    assert tradable(guards, [1_040.0]) == []


def test_a_price_that_never_moved_may_begin_to():
    guards = guards_of("A", guard_price_jump_deviations=3.0)
    for _ in range(50):
        guards.note_history(bars(100.0))
    assert tradable(guards, [101.0]) == ["A"]


def test_a_jump_tells_both_prices():
    guards = guards_of("A", guard_price_jump=0.1)
    guards.note_history(bars(100.0))
    verdict = guards.on_bars(bars(125.0), NOON + seconds(60), None)
    assert verdict.action == "trade"
    refusal = verdict.refusals[0]
    assert (refusal.guard, refusal.symbol, refusal.value, refusal.limit) == ("guard_price_jump", "A", 0.25, 0.1)
    assert refusal.sentence == (
        "A is not traded on this bar: its close went from 100 to 125, by +25.0000%, and guard_price_jump allows "
        "10.0000%."
    )


def test_an_infinite_price_leaves_the_next_ones_judged():
    guards = guards_of("A", guard_price_jump=0.1, guard_price_jump_deviations=3.0)
    guards.note_history(bars(100.0))
    assert tradable(guards, [math.inf]) == []
    assert tradable(guards, [101.0]) == ["A"]
    assert np.isfinite(guards.state()["guard_price_jump"]["A"]).all()


def test_a_price_that_began_to_move_is_judged_by_how_it_moves():
    guards = guards_of("A", guard_price_jump_deviations=3.0)
    for close in [100.0] * 50 + swinging(200):
        guards.note_history(bars(close))
    assert tradable(guards, [110.0]) == []


def test_what_cannot_be_is_sifted_out_before_it_is_observed_and_told_with_the_bar():
    guards, now = guards_of("A", "B", "C"), NOON + seconds(60)
    faulty = bars(100.0, 100.0, 100.0, open=[100.0, math.inf, 100.0], half_spread=[0.1, 0.1, -0.1])
    sifted = guards.sift(faulty)
    assert sifted.present.tolist() == sifted.fillable.tolist() == [True, False, True]
    assert np.isnan(sifted.open).tolist() == [False, True, False]
    assert sifted.volume.tolist() == [100.0, 0.0, 100.0]
    np.testing.assert_array_equal(sifted.half_spread, [0.1, math.nan, math.nan])
    assert np.isinf(faulty.open[1])  # what was handed in is as it was
    verdict = guards.on_bars(sifted, now, None)
    assert [(each.guard, each.symbol) for each in verdict.refusals] == [
        ("impossible_price", "B"),
        ("crossed_quotes", "C"),
    ]
    orders = [order(symbol, 1.0) for symbol in "ABC"]
    assert guards.on_orders(orders, Books(), [100.0] * 3, now)[0] == orders[:1]
    # The next bar has no fault.
    assert guards.sift(fine := bars(100.0, 100.0, 100.0, time=now)) is fine
    assert guards.on_bars(fine, now + seconds(60), None).refusals == ()
    assert guards.on_orders(orders, Books(), [100.0] * 3, now)[0] == orders


def test_a_close_after_a_split_is_compared_with_the_last_one_in_the_new_prices():
    guards = guards_of("A", "B", guard_price_jump=0.1)
    assert tradable(guards, [100.0, 100.0]) == ["A", "B"]
    guards.note_split("A", 0.5)
    assert tradable(guards, [52.0, 52.0]) == ["A"]
    assert tradable(guards, [104.0, 52.0]) == ["B"]
