"""Every fill is told once, whichever of Alpaca's sources told it, how often and in which order."""

from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from ml_pipeline.live.alpaca.orders import BrokerOrder, Execution, Reported, fill_of_rest, fills_of

AT = np.datetime64("2024-03-01T14:30", "ns")


def order(filled, value, sign=1):
    average = value / filled if filled else Decimal(0)
    return BrokerOrder("o", "id", "X", sign, Decimal(100), filled, average, "partly_filled", AT, AT)


def tell(progress, told, executions):
    fills, gap = fills_of(progress, told, executions, named="id")
    return [*fills, fill_of_rest(progress, told, named="id")] if gap else fills


@given(st.data())
def test_whatever_comes_when_each_share_is_told_once_at_its_price(data):
    parts = data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=6))
    quantities, values, executions = [Decimal(0)], [Decimal(0)], {}
    for quantity, price in parts:
        quantities.append(quantities[-1] + quantity)
        values.append(values[-1] + quantity * price)
        executions[quantities[-1]] = Execution(Decimal(quantity), Decimal(price), AT)
    told, seen, fills = Reported(), {}, []
    moments = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=5)))
    for reached in [*moments, len(parts)]:  # at each, some of the executions are known, and the state of the order
        known = data.draw(st.sets(st.sampled_from(sorted(executions))))
        seen |= {each: executions[each] for each in known if each <= quantities[reached]}
        fills += tell(order(quantities[reached], values[reached]), told, seen)
    assert len({fill.fill_id for fill in fills}) == len(fills)
    assert sum(fill.quantity for fill in fills) == quantities[-1]
    np.testing.assert_allclose(sum(float(fill.quantity) * fill.price for fill in fills), float(values[-1]), rtol=1e-9)


def test_single_prices_are_kept_where_they_are_known():
    executions = {
        Decimal(2): Execution(Decimal(2), Decimal(10), AT),
        Decimal(5): Execution(Decimal(3), Decimal(11), AT),
    }
    fills = tell(order(Decimal(5), Decimal(53), sign=-1), Reported(), executions)
    assert [(fill.fill_id, fill.quantity, fill.price) for fill in fills] == [("o/2", -2.0, 10.0), ("o/5", -3.0, 11.0)]


def test_a_fill_that_was_missed_follows_from_the_average():
    # 5 shares for 53 in all; 2 of them at 10 are known, so that the other 3 cost 33: 11 each.
    executions = {Decimal(2): Execution(Decimal(2), Decimal(10), AT)}
    fills = tell(order(Decimal(5), Decimal(53)), Reported(), executions)
    assert [(fill.quantity, fill.price) for fill in fills] == [(2.0, 10.0), (3.0, 11.0)]


def test_an_execution_that_comes_after_its_share_was_told_changes_nothing():
    told = Reported()
    assert len(tell(order(Decimal(5), Decimal(50)), told, {})) == 1
    late = {Decimal(2): Execution(Decimal(2), Decimal(10), AT), Decimal(5): Execution(Decimal(3), Decimal(10), AT)}
    assert tell(order(Decimal(5), Decimal(50)), told, late) == []
