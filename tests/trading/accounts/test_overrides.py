"""Orders that ended otherwise than the kernel assumes: other quantities and costs, and the debt that they may leave."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.orders import Overrides, Terms
from ml_pipeline.trading.accounts.single import BarTables, FillTables, PlainAccount

NAN = math.nan
FREE = Terms(0.0, 0.0)


def step(overrides, *, weights=(1.0,), cash=100.0, prices=(50.0,), closes=(60.0,), terms=FREE):
    """(cash, costs, equity, margin_called), holdings and what was filled, from cash alone."""
    n = len(weights)
    holdings, orders, filled = ([0.0] * n for _ in range(3))
    result = PLAIN.step(
        [*weights], [True] * n, cash, holdings, [*prices], [0.0] * n, [*closes], terms, orders, filled, overrides
    )
    return result, holdings, filled


def test_another_quantity_is_held_and_paid_for():
    # 2 are bought of 100; only 1 is: 50 are left, which are worth 50 + 60 at the close.
    assert step(Overrides([1.0], [NAN], [NAN])) == ((50.0, 0.0, 110.0, False), [1.0], [1.0])


def test_other_costs_are_a_part_of_what_was_traded():
    # A half is bought, so 50 are traded, of which 2 % are 1; with the fee of 0.5 it was assumed to cost 0.5.
    terms = Terms(0.0, 0.0, fixed_fee=0.5)
    (cash, costs, equity, called), holdings, _ = step(Overrides([NAN], [0.02], [NAN]), weights=(0.5,), terms=terms)
    assert (cash, costs, equity, called) == pytest.approx((49.0, 1.0, 109.0, False))
    assert holdings == [1.0]


def test_an_order_is_unchanged_where_nothing_is_known_of_it():
    terms = Terms(0.001, 0.002, fixed_fee=0.1, borrow_rate=0.001)
    two = {"weights": (0.5, -0.4), "prices": (50.0, 20.0), "closes": (60.0, 21.0), "terms": terms}
    assert step(Overrides([NAN] * 2, [NAN] * 2, [NAN] * 2), **two) == step(None, **two)


def test_a_debt_stays_and_is_no_margin_call():
    # 3 at 50 were bought with 100: 50 are owed, and the account goes on, as the broker's did.
    (cash, costs, equity, called), _, _ = step(Overrides([3.0], [NAN], [NAN]), terms=Terms(0.0, 0.0, borrow_rate=0.01))
    assert (cash, costs, equity, called) == (-50.0, 0.0, 130.0, False)


def test_shorts_pay_their_fee_into_a_debt():
    # 3 at 50 leave -50, and the short of 1 that gave 10 is worth 12: its fee of 0.12 makes the debt larger.
    terms = Terms(0.0, 0.0, borrow_rate=0.01)
    two = {"weights": (0.9, -0.1), "prices": (50.0, 10.0), "closes": (50.0, 12.0), "terms": terms}
    (cash, costs, _, called), holdings, _ = step(Overrides([3.0, -1.0], [NAN, NAN], [NAN, NAN]), **two)
    assert holdings == [3.0, -1.0]
    assert (cash, costs, called) == (pytest.approx(-40.12), pytest.approx(0.12), False)


@given(st.integers(0, 2**32), st.booleans())
def test_accounts_within_bars_or_not_follow_the_overrides_of_each_step(seed, within):
    rng = np.random.default_rng(seed)
    prices = np.exp(rng.normal(0, 0.02, (5, 2)).cumsum(axis=0)) * 100
    moved = prices[1:]
    bars = BarTables(moved, moved * 0.97, moved * 1.03, np.ones((4, 2), dtype=bool), np.ones((4, 1)))
    terms = Terms(0.001, 0.001, borrow_rate=1e-4, stop_loss=0.01 if within else 0.0)
    account = PlainAccount(FillTables(moved, np.zeros((4, 2)), prices, bars if within else None), terms)
    account.begin(0, 1e4)
    for bar in range(4):
        account.overrides = Overrides([*rng.choice([NAN, 3.0, -3.0], 2)], [*rng.choice([NAN, 0.01], 2)], [NAN, NAN])
        before, cash = account.holdings.copy(), account.cash
        account.step(bar, rng.uniform(-0.4, 0.4, 2).tolist(), [True, True])
        for quantity, filled in zip(account.overrides.quantities, account.filled, strict=True):
            assert math.isnan(quantity) or filled == quantity
        exits = account.exited if within else [0.0, 0.0]
        moves = [h + f + e for h, f, e in zip(before, account.filled, exits, strict=True)]
        assert account.holdings == pytest.approx(moves, abs=1e-9)
        paid = sum(f * p for f, p in zip(account.filled, moved[bar], strict=True))
        paid += sum(e * p for e, p in zip(exits, account.exit_prices, strict=True))
        assert account.cash == pytest.approx(cash - paid - account.costs)
        worth = sum(h * c for h, c in zip(account.holdings, prices[bar + 1], strict=True))
        assert account.equity == pytest.approx(account.cash + worth)


def test_the_fixed_fee_is_paid_once_by_an_order_that_is_filled():
    terms = Terms(0.0, 0.0, fixed_fee=0.5)
    # Nothing was assumed, and 1 was bought at 50: 100 - 50 - 0.5.
    (cash, costs, *_), holdings, _ = step(Overrides([1.0], [NAN], [NAN]), weights=(0.0,), terms=terms)
    assert (cash, costs, holdings) == (49.5, 0.5, [1.0])
    # 1 was assumed, and nothing was bought: no fee.
    (cash, costs, *_), holdings, _ = step(Overrides([0.0], [NAN], [NAN]), weights=(0.5,), terms=terms)
    assert (cash, costs, holdings) == (100.0, 0.0, [0.0])
    # Costs of 2 % of the 50, the fee among them.
    (cash, costs, *_), _, _ = step(Overrides([1.0], [0.02], [NAN]), weights=(0.0,), terms=terms)
    assert (cash, costs) == pytest.approx((49.0, 1.0))


def test_another_price_is_paid_for_the_same_quantity():
    # 2 at 50 were assumed; at 40 they leave 20, and at the close of 60 they are worth 120.
    (cash, costs, equity, _), holdings, _ = step(Overrides([NAN], [NAN], [40.0]))
    assert (cash, costs, equity, holdings) == (20.0, 0.0, 140.0, [2.0])
    # 1 % of 2 x 40 in place of 1 % of what 100 pay at 50.
    terms = Terms(0.01, 0.01)
    (cash, costs, *_), _, _ = step(Overrides([2.0], [NAN], [40.0]), terms=terms)
    assert (cash, costs) == pytest.approx((100 - 80 - 0.8, 0.8))
