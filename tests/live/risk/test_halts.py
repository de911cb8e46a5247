"""A halted symbol is not traded until it trades again; the others are."""

import math

from tests.live.risk.guarded_accounts import NOON, Books, bars, guards_of, order, seconds


def tradable(guards, *closes: float) -> list[str]:
    guards.on_bars(bars(*closes), NOON + seconds(60), None)
    orders = [order("A", 1.0), order("B", 1.0)]
    return [each.symbol for each in guards.on_orders(orders, Books(), [100.0, 100.0], NOON + seconds(60))[0]]


def test_a_symbol_without_bars_counts_as_halted_after_so_many():
    guards = guards_of("A", "B", guard_halt_bars=3)
    nan = math.nan
    seen = [tradable(guards, 100.0, close) for close in (nan, nan, nan, nan, 100.0, nan)]
    assert seen == [["A", "B"], ["A", "B"], ["A"], ["A"], ["A", "B"], ["A", "B"]]


def test_missing_bars_mean_nothing_unless_it_is_set():
    guards = guards_of("A", "B")
    assert all(tradable(guards, 100.0, math.nan) == ["A", "B"] for _ in range(50))


def test_halts_are_known_after_a_restart():
    before, after = (guards_of("A", "B", guard_halt_bars=2) for _ in range(2))
    tradable(before, 100.0, math.nan)
    after.set_state(before.state())
    assert tradable(after, 100.0, math.nan) == ["A"]
