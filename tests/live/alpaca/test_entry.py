"""What is sent for an order: fractions, shorts, positions that go through zero, and prices on Alpaca's grid."""

from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ml_pipeline.live.alpaca.entry import AlpacaAsset, order_fields, plan_order
from ml_pipeline.live.brokers.broker import OrderRequest

ANY = AlpacaAsset(tradable=True, fractionable=True, shortable=True)
WHOLE = ANY._replace(fractionable=False)


def order(quantity, *, closing=False):
    return OrderRequest("id", "X", quantity, 0.1, closing=closing)


def legs(quantity, position=0, asset=ANY, *, closing=False):
    terms = plan_order(order(quantity, closing=closing), asset, Decimal(str(position)))
    return [(name, float(each)) for name, each in terms.legs]


@pytest.mark.parametrize(
    ("quantity", "position", "asset", "expected"),
    [
        (1.25, 0, ANY, [("id", 1.25)]),
        (1.25, 0, WHOLE, [("id", 1.0)]),
        (0.9, 0, WHOLE, []),
        (-1.25, 2, ANY, [("id", -1.25)]),
        (-2.0, 0, ANY, [("id", -2.0)]),
        (-2.9, 0, ANY, [("id", -2.0)]),
        (-0.9, 0, ANY, []),
        (-1.0, 0, ANY._replace(shortable=False), []),
        (-1.0, 3, ANY._replace(shortable=False), [("id", -1.0)]),
        (1.5, -3, ANY, [("id", 1.0)]),
        (-2.5, 2.5, ANY, [("id", -2.5)]),
        (-4.7, 2.5, ANY, [("id.0", -2.5), ("id", -2.0)]),
        (-2.9, 2.5, ANY, [("id", -2.5)]),
        (4.5, -3, ANY, [("id.0", 3.0), ("id", 1.5)]),
        (4.5, -3, WHOLE, [("id.0", 3.0), ("id", 1.0)]),
        (1e-10, 0, ANY, []),
        (1.0, 0, ANY._replace(tradable=False), []),
    ],
)
def test_quantities_are_what_alpaca_takes(quantity, position, asset, expected):
    assert legs(quantity, position, asset) == expected


def test_closing_sells_every_digit_that_the_account_has_whatever_the_books_say():
    terms = plan_order(order(-0.3, closing=True), ANY, Decimal("0.300000001"))
    assert terms.legs == (("id", Decimal("-0.300000001")),)


def test_nothing_is_closed_where_nothing_is_held():
    assert plan_order(order(-0.3, closing=True), ANY, Decimal(0)).note == "there is no position to close"


def test_what_is_rounded_is_said():
    assert plan_order(order(-2.9), ANY, Decimal(0)).note == "2.9 shares are rounded down to 2: shorts are whole shares"
    assert "Alpaca has no fractions of it" in plan_order(order(0.5), WHOLE, Decimal(0)).note
    assert plan_order(order(2.0), WHOLE, Decimal(0)).note == ""


@given(
    st.floats(-1e5, 1e5, allow_nan=False),
    st.integers(-100_000, 100_000),
    st.booleans(),
    st.booleans(),
)
def test_no_order_is_larger_than_asked_for_nor_crosses_zero(quantity, position, fractionable, shortable):
    held = Decimal(position)
    terms = plan_order(order(quantity), AlpacaAsset(True, fractionable, shortable), held)
    assert abs(terms.quantity) < abs(Decimal(repr(quantity))) + Decimal("1e-9")  # which closes a position whole
    for _, leg in terms.legs:
        assert leg != 0
        assert held * (held + leg) >= 0  # one side of zero at a time
        held += leg
        assert held >= 0 or (held % 1 == 0 and (shortable or position < 0))


@given(st.decimals(Decimal("1e-9"), Decimal("1e6"), places=9))
def test_no_digit_of_a_quantity_is_lost(quantity):
    fields = order_fields("id", "X", quantity, None)
    assert Decimal(fields["qty"]) == quantity
    assert "E" not in fields["qty"]


@pytest.mark.parametrize(
    ("price", "quantity", "expected"),
    [
        (101.239, 1, "101.23"),
        (101.231, -1, "101.24"),
        (1.1000000000000003, -1, "1.10"),
        (0.51239, 1, "0.5123"),
        (0.51231, -1, "0.5124"),
    ],
)
def test_limits_lie_on_alpacas_grid_and_are_never_worse_than_asked_for(price, quantity, expected):
    fields = order_fields("id", "X", Decimal(quantity), price)
    assert (fields["type"], fields["limit_price"]) == ("limit", expected)
