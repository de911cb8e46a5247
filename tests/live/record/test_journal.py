"""The journal: whole transactions, exact numbers, and a file that says what it is."""

import json
import math
import sqlite3
from contextlib import closing
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import Charge, Fill, OrderRequest, exact
from ml_pipeline.live.record.journal import TABLES, WRITTEN, Journal, pack_bars, unpack_bars
from ml_pipeline.trading.market.bar_set import BarSet

TIME = np.datetime64("2024-03-01T09:30:00.000000001", "ns")
numbers = st.lists(st.floats(), min_size=2, max_size=2)


def bars_of(values: list[float], *, minute: int = 0, **more) -> BarSet:
    array = np.array(values)
    time = TIME + np.timedelta64(minute, "m")
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), array)
    closed_at = time + np.timedelta64(1, "m")
    return BarSet(time=time, closed_at=closed_at, **prices, fillable=np.array([True, False]), **more)


@given(numbers, numbers, st.booleans())
def test_bars_keep_every_bit(prices, others, late):
    bars = bars_of(prices, half_spread=np.array(others), columns={"feature_ä": np.array(others)}, late=late)

    again = unpack_bars(pack_bars(bars))

    assert (again.time, again.closed_at, again.late) == (bars.time, bars.closed_at, late)
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        assert getattr(again, name).tobytes() == getattr(bars, name).tobytes()
    assert again.fillable.tolist() == [True, False]
    assert again.columns["feature_ä"].tobytes() == bars.columns["feature_ä"].tobytes()


def test_bars_without_quotes_or_columns_come_back_without_them():
    again = unpack_bars(pack_bars(bars_of([1.0, math.nan])))

    assert again.half_spread is None
    assert again.columns == {}
    assert again.present.tolist() == [True, False]


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite", durable=False)
    yield journal
    journal.close()


def test_a_transaction_that_fails_leaves_nothing(journal):
    with pytest.raises(ZeroDivisionError), journal.transaction():  # noqa: PT012  # what fails is the whole of it
        journal.add_bar(0, bars_of([1.0, 2.0]), "warm")
        journal.set_snapshots({"books": '{"cash": 1.0}'})
        journal.add_log_lines(["{}"])
        _ = 1 / 0

    assert journal.n_bars() == 0
    assert not journal.snapshots()
    assert list(journal.log_lines()) == []


@pytest.fixture(scope="module")
def one_journal(tmp_path_factory):
    with closing(Journal(tmp_path_factory.mktemp("journal") / "journal.sqlite", durable=False)) as journal:
        yield journal


@given(st.floats(allow_nan=False))
def test_snapshots_keep_the_bits_of_numbers(one_journal, number):
    with one_journal.transaction():
        one_journal.set_snapshots({"books": json.dumps({"cash": number})})

    assert one_journal.snapshots()["books"]["cash"].hex() == number.hex()


def test_an_order_is_written_once_and_followed_to_its_end(journal):
    order = OrderRequest("A-1", "A", exact(1 / 3), 0.5)
    with journal.transaction():
        journal.add_orders(4, [order])
        journal.add_orders(5, [order._replace(quantity=Decimal(9))])

    assert [(each.request, each.number, each.status) for each in journal.orders()] == [(order, 4, WRITTEN)]
    assert journal.update_order("A-1", "filled", filled=exact(1 / 3))
    assert not journal.update_order("A-1", "filled", filled=exact(1 / 3))
    assert not journal.update_order("B-1", "filled")
    assert journal.orders(statuses=[WRITTEN]) == []
    assert journal.orders(statuses=["filled"], number=4)[0].filled_quantity == exact(1 / 3)


def test_fills_and_charges_come_back_in_order_and_once(journal):
    fills = [Fill(name, "A-1", "A", Decimal("0.1"), 1 / 3, 0.0, TIME) for name in ("f2", "f1")]
    charge = Charge("c1", 0.1, "borrowing", TIME, days=3.0)
    for event in (*fills, fills[0]):
        journal.add_fill(1, event)
    journal.add_charge(1, charge)
    journal.add_charge(2, charge)

    assert journal.fills() == fills
    assert journal.charges() == [charge]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9))
def test_quantities_keep_every_digit(one_journal, quantity):
    name = str(one_journal.n_fills())
    with one_journal.transaction():
        one_journal.add_fill(1, Fill(name, "A-1", "A", quantity, 1.0, 0.0, TIME))
    assert str(one_journal.fills()[-1].quantity.normalize()) == str(quantity.normalize())


def test_a_journal_from_before_decimals_is_read_and_goes_on(tmp_path):
    path, third = tmp_path / "journal.sqlite", 0.1 + 0.2
    with closing(sqlite3.connect(path)) as db:
        db.executescript(TABLES.replace("quantity TEXT", "quantity REAL"))
        db.execute("INSERT INTO meta VALUES ('version', '1')")
        for name in ("b", "a"):
            db.execute(
                "INSERT INTO orders VALUES (?, 4, 'A', ?, 0.5, NULL, 0, NULL, 'accepted', ?, '')", (name, third, 1e-7)
            )
            db.execute("INSERT INTO fills VALUES (?, ?, 'A', ?, 1.5, 0.0, 17, 0, 0, 4)", (name, name, third))
        db.commit()
    for writes in (False, True, True):
        with closing(Journal(path, writes=writes)) as journal:
            assert [(each.request.client_order_id, float(each.request.quantity)) for each in journal.orders()] == [
                ("b", third),
                ("a", third),
            ]
            assert {each.filled_quantity for each in journal.orders(statuses=["accepted"])} == {Decimal("1e-7")}
            assert [float(each.quantity) for each in journal.fills()] == [third, third]
    with closing(Journal(path)) as journal, journal.transaction():
        journal.add_fill(5, Fill("c", "a", "A", Decimal("12345678901.123456789"), 1.0, 0.0, TIME))
        assert journal.fills()[-1].quantity == Decimal("12345678901.123456789")


def test_bars_are_found_again_after_the_file_was_closed(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal.add_bar(0, bars_of([1.0, 2.0]), "warm")
    journal.add_bar(1, bars_of([1.5, 2.5], minute=1), "account", line="x\n")
    journal.close()

    again = Journal(tmp_path / "journal.sqlite")

    assert again.last_bar() == (1, TIME + np.timedelta64(1, "m"))
    assert again.first_account_bar() == 1
    assert [bars.close.tolist() for bars in again.bars()] == [[1.0, 2.0], [1.5, 2.5]]
    assert list(again.ledger_lines()) == ["x\n"]
    again.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "journal.sqlite").write_text("something else, and long enough to be no empty database" * 9)

    with pytest.raises(UserError, match="cannot be used as the journal of a session"):
        Journal(tmp_path / "journal.sqlite")


def test_a_journal_of_a_newer_version_is_refused(tmp_path):
    Journal(tmp_path / "journal.sqlite").close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    db.close()

    with pytest.raises(UserError, match="is of version 99"):
        Journal(tmp_path / "journal.sqlite")


def fill(journal: Journal) -> None:
    with journal.transaction():
        for number in range(60):
            journal.add_bar(number, bars_of([1.0, 2.0], minute=number), "account", line="a line\n" * 100)


def read(path) -> None:
    with closing(Journal(path)) as journal:
        list(journal.ledger_lines())
        list(journal.bars())


@pytest.mark.parametrize("page", [1, 4])
def test_a_damaged_journal_is_told_in_a_sentence(tmp_path, page):
    path = tmp_path / "journal.sqlite"
    with closing(Journal(path)) as journal:
        fill(journal)
    with path.open("r+b") as file:
        file.seek(4096 * page)
        file.write(b"\xff" * 4096)

    with pytest.raises(UserError, match=r"journal\.sqlite (is damaged|cannot be used)"):
        read(path)


def test_a_full_disk_ends_a_transaction_with_a_sentence(journal):
    journal._db.execute("PRAGMA max_page_count = 25")

    with pytest.raises(UserError, match="Free disk space"):
        fill(journal)

    assert journal.n_bars() == 0


def test_what_is_read_at_one_time_is_of_one_moment_and_nothing_is_written(tmp_path):
    path = tmp_path / "journal.sqlite"
    with closing(Journal(path)) as own:
        own.set_meta({"a": "before"})
        with closing(Journal(path, writes=False)) as reader:
            with reader.at_one_time():
                assert reader.meta("a") == "before"
                own.set_meta({"a": "after"})
                assert reader.meta("a") == "before"
            assert reader.meta("a") == "after"
            with pytest.raises(UserError, match="readonly"):
                reader.set_meta({"a": "mine"})


def test_a_journal_that_is_only_read_is_not_made(tmp_path):
    with pytest.raises(UserError, match="cannot be used as the journal"):
        Journal(tmp_path / "journal.sqlite", writes=False)
    assert not (tmp_path / "journal.sqlite").exists()
