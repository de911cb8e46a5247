from datetime import datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.live.orders import LONGEST_ID, client_order_id

BAR = np.datetime64("2024-03-01T09:35")
decisions = st.tuples(
    st.text(max_size=60),
    st.datetimes(datetime(1901, 1, 1), datetime(2199, 1, 1)).map(np.datetime64),
    st.text(max_size=60),
    st.sampled_from(("", "flatten")),
)


def id_of(decision):
    session, time, symbol, purpose = decision
    return client_order_id(session, time, symbol, purpose=purpose)


@given(decisions, decisions)
def test_ids_are_short_and_tell_decisions_apart(one, other):
    name = id_of(one)
    assert 0 < len(name) <= LONGEST_ID
    assert name.isascii()
    assert name.replace("-", "").replace("_", "").isalnum()
    assert (name == id_of(other)) == (one == other)


def test_the_same_bar_in_another_unit_of_time_gives_the_same_id():
    assert client_order_id("s", BAR, "BTC") == client_order_id("s", BAR.astype("datetime64[ns]"), "BTC")


def test_bars_within_one_second_have_ids_of_their_own():
    later = BAR.astype("datetime64[ns]") + np.timedelta64(1, "ms")
    assert client_order_id("s", BAR, "BTC") != client_order_id("s", later, "BTC")


def test_names_that_run_together_stay_apart():
    assert client_order_id("a", BAR, "bc") != client_order_id("ab", BAR, "c")
