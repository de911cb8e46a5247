"""After a split a session decides as if there had been none; while the account lacks it, nothing is ordered."""

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import Adjustment
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.feeds.feed import CorporateAction
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import reconcile
from ml_pipeline.live.session_files import LEDGER_FILE
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.loop.sessions import deploy, session, trade, write_prices
from tests.live.loop.test_trading_loop import events_of

ONE = ["A"]
BEGINS = np.datetime64("2024-03-05T00:00", "ns")
SPLIT = CorporateAction("s-1", "A", "split", BEGINS, 0.5, "A splits 2 for 1 on 2024-03-05.")


def split_prices(prices: Path, path: Path) -> Path:
    """The same bars with prices halved and volumes doubled from midnight on."""
    head, *rows = prices.read_text().splitlines()
    changed = [head]
    for row in rows:
        time, symbol, *cells = row.split(",")
        if np.datetime64(time.replace(" ", "T")) >= BEGINS:
            *own, volume = map(float, cells)
            cells = [*(repr(price / 2) for price in own), repr(volume * 2)]
        changed.append(",".join([time, symbol, *cells]))
    path.write_text("\n".join(changed) + "\n")
    return path


def reported(feed: Any, timeout_s: float | None, waiting: list[Any]) -> Any:
    """The items of a feed that reports the split before the first bar after it."""
    if waiting:
        return waiting.pop()
    item = feed.next(timeout_s)
    if isinstance(item, BarSet) and item.time >= BEGINS and item.time < BEGINS + np.timedelta64(1, "m"):
        waiting.append(item)
        return SPLIT
    return item


def splitting(at: np.datetime64) -> type[SimulatedBroker]:
    """A broker that splits the position before the first bar from this time on."""

    class Splitting(SimulatedBroker):
        def market_closed_bar(self, bars):
            held = self.account().positions.get("A", Decimal(0))
            if bars.time >= at and held and not any(isinstance(each, Adjustment) for each in self.poll(None)[0]):
                self.adjust(Adjustment("1", "split", "A", held, 0.0, "2 for 1", at))
            super().market_closed_bar(bars)

    return Splitting


@pytest.fixture
def replay(tmp_path):
    """(model, prices without a split, prices with one)."""
    write_prices(tmp_path / "prices.csv", ONE)
    prices = tmp_path / "prices.csv"
    return deploy(tmp_path / "model", ONE), prices, split_prices(prices, tmp_path / "split.csv")


def column(folder: Path, name: str) -> list[float]:
    return [float(row[name]) for row in csv.DictReader((folder / LEDGER_FILE).read_text().splitlines())]


def traded(model: Path, root: Path, prices: Path, *, splits: bool, stops_at: int | None) -> Path:
    """The folder of a session, which is stopped once after so many bars and started again."""
    waiting: list[Any] = []
    n_seen = 0

    def next_item(feed, timeout_s):
        nonlocal n_seen
        item = reported(feed, timeout_s, waiting) if splits else feed.next(timeout_s)
        n_seen += isinstance(item, BarSet)
        if n_seen == stops_at and isinstance(item, BarSet):
            trading.stop.request("Enough.")
        return item

    for _ in range(1 if stops_at is None else 2):
        broker_class = splitting(BEGINS) if splits else SimulatedBroker
        settings = {"broker_class": broker_class, "next_item": next_item, "guard_price_jump": 0.2}
        trading = session(model, root, prices=prices, **settings)
        result = trading.run()
    assert result.status == "finished", result.reason
    return result.folder


@pytest.mark.parametrize("stops_at", [None, 31, 35])
def test_a_split_changes_no_decision_and_no_equity(tmp_path, replay, stops_at):
    """Nor a stop, nor a limit on price jumps; also if the session is stopped at the first bar after the split, or
    later, and started again."""
    _, prices, split = replay
    model = deploy(tmp_path / "protected", ONE, stop_loss=0.02)
    plain = traded(model, tmp_path / "plain", prices, splits=False, stops_at=stops_at)

    folder = traded(model, tmp_path / "split", split, splits=True, stops_at=stops_at)

    assert [each["kind"] for each in events_of(folder, "corporate_action")] == ["split"]
    assert [each["kind"] for each in events_of(folder, "adjustment")] == ["split"]
    np.testing.assert_allclose(column(folder, "equity"), column(plain, "equity"), rtol=1e-9)
    np.testing.assert_allclose(column(folder, "position_A")[-1], 2 * column(plain, "position_A")[-1], rtol=1e-9)
    decided, expected = events_of(folder, "decision"), events_of(plain, "decision")
    assert [each["bar"] for each in decided] == [each["bar"] for each in expected]
    assert [each["action"] for each in decided] == pytest.approx([each["action"] for each in expected], abs=1e-6)
    assert not events_of(folder, "refusal")
    assert any(map(abs, column(folder, "exited_A"))), "no stop was reached"


def test_until_the_account_has_the_split_nothing_is_ordered_and_no_loss_is_counted(tmp_path, replay):
    model, _, split = replay
    waiting: list[Any] = []
    late = splitting(BEGINS + np.timedelta64(3, "m"))

    result = trade(
        model,
        tmp_path / "live",
        split,
        broker_class=late,
        next_item=lambda feed, timeout_s: reported(feed, timeout_s, waiting),
        guard_drawdown=0.3,
    )

    assert result.status == "finished", result.reason
    missed = events_of(result.folder, "missed")
    assert [each["bar"] for each in missed] == [f"2024-03-05T00:0{minute}:00" for minute in range(3)]
    assert "the account does not have the split of A yet" in missed[0]["sentence"]
    assert not {each["bar"] for each in missed} & {each["bar"] for each in events_of(result.folder, "order")}


def test_the_split_of_a_symbol_that_is_not_held_is_not_waited_for(tmp_path, replay):
    """The kill file prevents orders until the split is reported."""
    model, _, split = replay
    waiting: list[Any] = []
    kill_file = tmp_path / "STOP"
    kill_file.touch()

    def next_item(feed: Any, timeout_s: float | None) -> Any:
        if (item := reported(feed, timeout_s, waiting)) is SPLIT:
            kill_file.unlink()
        return item

    folder = trade(model, tmp_path / "live", split, next_item=next_item, kill_file=kill_file).folder

    assert [each["kind"] for each in events_of(folder, "corporate_action")] == ["split"]
    assert len(events_of(folder, "order")) > 3
    assert not events_of(folder, "missed")


def test_the_backtest_of_a_session_sees_its_split(tmp_path, replay):
    model, _, split = replay

    found = reconcile(read_session(traded(model, tmp_path / "live", split, splits=True, stops_at=None)))

    assert abs(found.difference) < 1e-6
    assert not [each for each in found.attribution.causes if abs(each.worth) > 1e-6]
    assert "Quantities and prices of A before a split are shown as after it." in found.record.notes


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_split_that_is_booked_late_is_worth_what_it_did(tmp_path, replay, is_reported):
    """Whether the feed reports it or the jump of the price shows it: half of the shares are missing for three bars."""
    model, _, split = replay
    waiting: list[Any] = []
    late = splitting(BEGINS + np.timedelta64(3, "m"))
    report = {"next_item": lambda feed, timeout_s: reported(feed, timeout_s, waiting)} if is_reported else {}

    result = trade(model, tmp_path / "live", split, broker_class=late, **report)

    found = reconcile(read_session(result.folder)).attribution
    causes = {each.cause: each for each in found.causes}
    assert "adjusted" in causes
    assert "unexplained" not in causes
    assert [each.evidence.split(",")[0] for each in found.divergent if each.cause == "adjusted"] == [
        "the account did not have the split of A yet",
        "split",
    ]
    assert all(abs(each.worth) < 500.0 for each in found.causes), found.causes  # of 10,000
    assert abs(found.rounding) < 1e-6
