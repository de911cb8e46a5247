"""The state of a session: what is saved comes back, under the keys that journals have always had."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import fields

import numpy as np
import pytest

from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.state import SessionState
from ml_pipeline.trading.market.bar_set import BarSet

SAVED = {
    "account": {"cash": 0.1},
    "policy": {"choices": [1]},
    "guards": {"guard_losses": {"day": None}},
    "event_cursor": "7",
    "expired": {"B", "A"},
    "closing_ordered": True,
    "awaiting_previous_model": True,
    "decided": True,
    "unlogged_decision": {"bar": "2024-03-01T09:30:00"},
    "refusals": Counter(guard_gross=2),
    "taken_over": {"cash": 1.0, "positions": {"A": 7.0}},
    "costs_paid": 3.5,
    "bar_columns": {"quotes": False, "names": []},
    "other_positions": {"GOLD": "3.0"},
    "other_orders": {"theirs"},
    "awaited_splits": {"A"},
    "cash_rounding": 0.004,
    "fills_since_check": 2,
    "left_over_told": {"A"},
    "flow": 5.0,
    "flow_growth": 1.5,
    "protections": {"A": {"number": 1, "id": "p", "values": ["7", 95.0, None], "filled": "0"}},
}
KEYS = (
    *("books", "decider", "guards", "cursor", "lapsed", "closing", "follows", "decided", "unlogged", "refusals"),
    *("taken_over", "costs_paid", "bar_columns", "protections"),
    *("other_positions", "other_orders", "awaited_splits", "cash_rounding", "fills_since_check"),
    *("left_over_told", "flow", "flow_growth"),
)


@pytest.fixture
def journal(tmp_path):
    with closing(Journal(tmp_path / "journal.sqlite", durable=False)) as journal:
        yield journal


def save(state, journal):
    with journal.transaction():
        state.save(journal)


def bars_at(minute, *closes):
    time, prices = np.datetime64("2024-03-01T09:30", "ns") + np.timedelta64(minute, "m"), np.array(closes)
    return BarSet(time, time, prices, prices, prices, prices, np.ones(len(closes)), ~np.isnan(prices))


def test_every_saved_field_comes_back_under_its_key(journal):
    save(SessionState(**SAVED), journal)
    again = SessionState.load(journal, ["A", "B"])
    assert {name: getattr(again, name) for name in SAVED} == SAVED
    assert sorted(journal.snapshots()) == sorted(KEYS)
    assert {each.name for each in fields(SessionState)} - {*SAVED} == {"number", "begun", "last", "closes", "_on_disk"}


def test_only_what_has_changed_is_written(journal, monkeypatch):
    state = SessionState.load(journal, ["A"])
    save(state, journal)
    assert journal.snapshots() == {}  # a session that has not begun
    state.closing_ordered, state.account = True, {"cash": 1.0}
    save(state, journal)
    assert journal.snapshots() == {"closing": True, "books": {"cash": 1.0}}
    with journal.transaction():
        journal.set_snapshots({"closing": json.dumps("untouched")})
    state.expired.add("A")
    save(state, journal)
    assert journal.snapshots() == {"closing": "untouched", "books": {"cash": 1.0}, "lapsed": ["A"]}


def test_what_a_failed_transaction_was_to_save_is_saved_with_the_next(journal):
    state = SessionState.load(journal, ["A"])
    state.decided = True
    with pytest.raises(ZeroDivisionError), journal.transaction():  # noqa: PT012  # what fails is the whole of it
        state.save(journal)
        _ = 1 / 0
    state.note_rolled_back()
    save(state, journal)
    assert journal.snapshots()["decided"] is True


def test_where_it_stands_follows_from_the_bars(journal):
    with journal.transaction():
        journal.add_bar(0, bars_at(0, 1.0, 2.0), "warm")
        journal.add_bar(1, bars_at(1, 3.0, np.nan), "account", line="a row\n")
    state = SessionState.load(journal, ["A", "B"])
    assert (state.number, state.begun, state.closes.tolist()) == (2, True, [3.0, 2.0])
    assert state.time == np.datetime64("2024-03-01T09:31")
