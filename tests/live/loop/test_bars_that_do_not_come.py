"""Gaps, corrections and late bars in the loop: nothing is ordered on what is not whole."""

import csv
from dataclasses import replace

import pytest

from ml_pipeline.live.feeds.feed import Correction, Gap
from ml_pipeline.live.session_files import LEDGER_FILE
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.loop.sessions import backtest, deploy, trade, write_prices
from tests.live.loop.test_trading_loop import events_of

ONE = ["A"]
WINDOW = 3


@pytest.fixture
def replay(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    return deploy(tmp_path / "model", ONE, window=WINDOW), tmp_path / "prices.csv"


def at_item(number, change, seen=None):
    """A feed where `change` makes what comes of the item with this number: a list of items, given out one by one."""
    seen, waiting = [] if seen is None else seen, []

    def changed(feed, timeout_s):
        if waiting:
            return waiting.pop(0)
        item = feed.next(timeout_s)
        if isinstance(item, BarSet):
            seen.append(item)
            if len(seen) == number:
                waiting.extend(change(item))
                return waiting.pop(0)
        return item

    return changed


def gap(bars):
    return [Gap(bars.time, bars.time, ("A",), "the line was dead."), bars]


def test_a_gap_waits_until_the_window_is_whole(tmp_path, replay):
    model, prices = replay
    seen = []

    result = trade(model, tmp_path / "live", prices, on_gap="wait", next_item=at_item(30, gap, seen))

    assert (result.status, len(events_of(result.folder, "gap"))) == ("finished", 1)
    missed = [each["bar"] for each in events_of(result.folder, "missed")]
    assert missed == [str(bars.time)[:19] for bars in seen[29 : 29 + WINDOW - 1]]
    assert not {*missed} & {each["bar"] for each in events_of(result.folder, "decision")}
    rows = backtest(model, prices, tmp_path / "expected.csv").splitlines()
    assert len((result.folder / LEDGER_FILE).read_bytes().splitlines()) == len(rows)


def test_a_gap_closes_all_positions_where_that_is_configured(tmp_path, replay):
    model, prices = replay

    result = trade(model, tmp_path / "live", prices, on_gap="flatten", next_item=at_item(30, gap))

    assert (result.status, result.flat, result.asked) == ("stopped", True, False)
    assert float([*csv.DictReader((result.folder / LEDGER_FILE).read_text().splitlines())][-1]["position_A"]) == 0


def test_a_correction_is_told_and_changes_no_decision(tmp_path, replay):
    model, prices = replay
    corrected = at_item(30, lambda bars: [bars, Correction(replace(bars, close=bars.close * 1.01), ("A",))])

    folder = trade(model, tmp_path / "live", prices, next_item=corrected).folder

    (told,) = events_of(folder, "correction")
    assert "was corrected; earlier decisions are unchanged" in told["sentence"]
    assert (folder / LEDGER_FILE).read_bytes() == backtest(model, prices, tmp_path / "expected.csv")


def test_on_late_bars_nothing_is_ordered(tmp_path, replay):
    model, prices = replay
    late = at_item(30, lambda bars: [replace(bars, late=True)])

    folder = trade(model, tmp_path / "live", prices, next_item=late).folder

    (told,) = events_of(folder, "late")
    assert told["bar"] not in {each["bar"] for each in events_of(folder, "decision")}
    assert told["bar"] not in {each["bar"] for each in events_of(folder, "order")}


def test_a_loss_limit_ends_a_session_also_on_late_bars(tmp_path, replay):
    model, prices = replay
    n = []

    def late(feed, timeout_s):
        item = feed.next(timeout_s)
        n.append(item)
        return replace(item, late=True) if isinstance(item, BarSet) and len(n) > 15 else item

    result = trade(model, tmp_path / "live", prices, guard_drawdown=0.002, next_item=late)

    assert not result.asked
    assert "guard_drawdown" in result.reason
