"""An order at a limit is allowed, one just above it is refused, and one that makes a position smaller always passes."""

import math

import pytest

from tests.live.risk.guarded_accounts import NOON, Books, allowed, bars, guards_of, order, refusals, seconds

# 10,000 of equity at a price of 100: 50 pieces are half of it.
HALF, BELOW, ABOVE = 50.0, 49.999, 50.001


@pytest.mark.parametrize(
    "settings",
    [{"guard_position": 0.5}, {"guard_position_money": 5_000}, {"guard_order": 0.5}, {"guard_order_money": 5_000},
     {"guard_gross": 0.5}],
)  # fmt: skip
@pytest.mark.parametrize("side", [1, -1])
def test_an_order_passes_up_to_its_limit(settings, side):
    for quantity, passes in ((BELOW, True), (HALF, True), (ABOVE, False)):
        orders = allowed(guards_of("A", **settings), order("A", side * quantity), books=Books(), closes=[100.0])
        assert (len(orders) == 1) is passes


def test_a_limit_is_met_through_rounding():
    # 3 pieces at 0.1 are 0.30000000000000004, and 0.3 is allowed.
    assert 3 * 0.1 > 0.3
    assert allowed(guards_of("A", guard_position_money=0.3), order("A", 3.0), books=Books(), closes=[0.1])


@pytest.mark.parametrize("settings", [{"guard_position": 0.5}, {"guard_gross": 0.5}])
def test_what_is_held_counts(settings):
    books = Books(holdings={"A": 30.0})
    assert allowed(guards_of("A", **settings), order("A", 20.0), books=books, closes=[100.0])
    assert not allowed(guards_of("A", **settings), order("A", 20.1), books=books, closes=[100.0])


@pytest.mark.parametrize("settings", [{"guard_order": 0.1}, {"guard_position": 0.1}, {"guard_gross": 0.1},
                                      {"guard_orders_per_minute": 1}])  # fmt: skip
@pytest.mark.parametrize("side", [1, -1])
def test_a_smaller_position_is_never_refused(settings, side):
    books = Books(holdings={"A": side * 90.0, "B": 1.0})
    orders = [order("B", -0.5), order("A", side * -40.0), order("A", side * -50.0)]
    assert allowed(guards_of("A", "B", **settings), *orders, books=books, closes=[100.0, 100.0]) == orders


def test_a_position_that_changes_sides_is_judged_as_a_new_one():
    guards, books = guards_of("A", guard_position=0.5), Books(holdings={"A": 90.0})
    assert allowed(guards, order("A", -140.0), books=books, closes=[100.0])  # 50 short
    assert not allowed(guards, order("A", -141.0), books=books, closes=[100.0])


def test_the_orders_of_a_decision_are_judged_together():
    guards, books = guards_of("A", "B", "C", guard_gross=1.0), Books()
    orders = [order("A", 60.0), order("B", -30.0), order("C", 20.0)]
    assert allowed(guards, *orders, books=books, closes=[100.0] * 3) == orders[:2]


def test_what_is_sold_makes_room_wherever_it_stands():
    guards, books = guards_of("A", "B", guard_gross=1.0), Books(holdings={"B": 100.0})
    orders = [order("A", 100.0), order("B", -100.0)]
    assert allowed(guards, *orders, books=books, closes=[100.0] * 2) == orders
    assert not allowed(guards, orders[0], books=books, closes=[100.0] * 2)


def test_an_order_that_is_sized_at_its_fill_is_judged_by_its_weight():
    guards = guards_of("A", guard_position=0.5)
    assert allowed(guards, order("A", 0.0, 0.5), books=Books(), closes=[100.0])
    assert not allowed(guards, order("A", 0.0, 0.501), books=Books(), closes=[100.0])
    assert not allowed(guards, order("A", 0.0, -0.501), books=Books(), closes=[100.0])


def test_orders_within_a_minute_are_counted_over_bars():
    guards, books = guards_of("A", guard_orders_per_minute=2), Books()

    def sent(at_s: float) -> int:
        guards.on_bars(bars(100.0), NOON + seconds(60), None)
        return len(guards.on_orders([order("A", 1.0)], books, [100.0], NOON + seconds(at_s))[0])

    assert [sent(0.0), sent(30.0), sent(59.9)] == [1, 1, 0]
    assert [sent(60.0), sent(60.0), sent(89.9), sent(90.0)] == [1, 0, 0, 1]  # each counts for 60 s


def test_orders_within_a_minute_are_counted_after_a_restart():
    settings = {"guard_orders_per_minute": 1}
    before, after = guards_of("A", **settings), guards_of("A", **settings)
    assert allowed(before, order("A", 1.0), books=Books(), closes=[100.0])
    after.set_state(before.state())
    assert not allowed(after, order("A", 1.0), books=Books(), closes=[100.0])


def test_a_clock_that_is_set_back_lets_no_more_orders_through():
    guards = guards_of("A", guard_orders_per_minute=1)
    assert allowed(guards, order("A", 1.0), books=Books(), closes=[100.0])
    assert not guards.on_orders([order("A", 1.0)], Books(), [100.0], NOON - seconds(3_600))[0]


@pytest.mark.parametrize(
    "wrong",
    [
        order("A", math.nan),
        order("A", math.inf),
        order("A", 1.0, math.nan),
        order("A", 1.0, limit_price=math.nan),
        order("A", 1.0, limit_price=0.0),
        order("A", math.nan, closing=True),
        order("X", 1.0),
        order("B", 1.0),  # which has no price
    ],
)
def test_an_impossible_order_is_refused_without_any_setting(wrong):
    books = Books(holdings={"A": 5.0})
    assert not allowed(guards_of("A", "B"), wrong, books=books, closes=[100.0, math.nan])


@pytest.mark.parametrize("equity", [0.0, -100.0, math.nan])
@pytest.mark.parametrize("setting", ["guard_position", "guard_order", "guard_gross"])
def test_an_account_without_equity_opens_nothing(setting, equity):
    books = Books(equity=equity, holdings={"A": 5.0})
    orders = [order("A", 1.0), order("A", -5.0)]
    assert allowed(guards_of("A", **{setting: 1.0}), *orders, books=books, closes=[100.0]) == orders[1:]


def test_a_position_whose_worth_nobody_knows_lets_no_exposure_grow():
    books = Books(holdings={"B": 5.0})
    assert not allowed(guards_of("A", "B", guard_gross=9.0), order("A", 1.0), books=books, closes=[100.0, math.nan])


def test_a_closing_order_must_close():
    guards, books = guards_of("A", guard_position=0.01), Books(holdings={"A": 90.0})
    closing = order("A", -90.0, closing=True)
    assert allowed(guards, closing, books=books, closes=[100.0]) == [closing]
    assert not allowed(guards, order("A", 90.0, closing=True), books=books, closes=[100.0])
    assert not allowed(guards, order("A", -180.0, closing=True), books=books, closes=[100.0])


def test_a_refusal_tells_its_numbers():
    books = Books(holdings={"A": 30.0})
    said = refusals(guards_of("A", guard_position=0.5), order("A", 22.8), books=books, closes=[100.0])
    assert said == [
        "The order of +22.8 A is refused: the position would be 5,280.00, 0.528 of the equity of 10,000.00, and "
        "guard_position allows 0.5."
    ]
    said = refusals(guards_of("A", guard_order_money=100), order("A", -2.0), books=books, closes=[100.0])
    assert said == []  # it makes the position smaller
    said = refusals(guards_of("A", guard_order_money=100), order("A", 2.0), books=books, closes=[100.0])
    assert said == ["The order of +2 A is refused: it is 200.00 in money, and guard_order_money allows 100.00."]
    guards = guards_of("A", guard_orders_per_minute=1)
    said = refusals(guards, order("A", 1.0), order("A", 2.0), books=books, closes=[100.0])
    assert said == [
        "The order of +2 A is refused: it would be number 2 within a minute, and guard_orders_per_minute allows 1."
    ]


def test_a_weight_on_the_other_side_is_not_a_smaller_position():
    guards, books = guards_of("A", guard_order=0.1), Books(holdings={"A": 50.0})
    assert allowed(guards, order("A", 0.0, 0.45), books=books, closes=[100.0])
    assert not allowed(guards, order("A", 0.0, -0.45), books=books, closes=[100.0])


def test_a_symbol_that_is_not_listed_yet_may_have_an_order_that_comes_to_nothing():
    # A broker that sizes at the fill gets one for every symbol; without a price it fills none.
    nothing = order("B", 0.0, 0.5)
    for no_price in (0.0, math.nan):
        for settings, sent in (({}, [nothing]), ({"guard_position": 0.4}, [])):
            guards = guards_of("A", "B", **settings)
            assert guards.on_orders([nothing], Books(), [100.0, no_price], NOON)[0] == sent
