"""Corporate actions are requested as a day of the exchange begins and before it opens, and each is reported once."""

from datetime import date

import numpy as np
import pytest

from ml_pipeline.live.alpaca.corporate_actions import ActionsOfTheDay, actions_of, begin_of
from ml_pipeline.live.feeds.feed import BarsUnavailable, CorporateAction

SPLIT = {"id": "s-1", "symbol": "AAPL", "old_rate": 1, "new_rate": 2, "ex_date": "2024-03-05"}
MIDNIGHT = np.datetime64("2024-03-05T05:00", "ns")  # in New York, in winter


def test_a_day_of_the_exchange_begins_at_its_midnight():
    assert begin_of(date(2024, 3, 5)) == MIDNIGHT
    assert begin_of(date(2024, 7, 5)) == np.datetime64("2024-07-05T04:00", "ns")


def test_splits_dividends_and_changes_of_symbols_are_sentences():
    answer = {
        "forward_splits": [SPLIT],
        "reverse_splits": [SPLIT | {"id": "s-2", "old_rate": 10, "new_rate": 1}],
        "cash_dividends": [{"id": "d", "symbol": "AAPL", "rate": 0.24, "ex_date": "2024-03-05"}],
        "name_changes": [{"id": "n", "old_symbol": "AAPL", "new_symbol": "APLX", "process_date": "2024-03-05"}],
        "stock_mergers": [{"id": "m", "acquiree_symbol": "OTHER", "effective_date": "2024-03-05"}],
    }
    found = list(actions_of(answer, ("AAPL",)))
    assert [(each.action_id, each.kind, each.factor) for each in found] == [
        ("s-1", "split", 0.5),
        ("s-2", "split", 10.0),
        ("d", "cash dividend", 1.0),
        ("n", "symbol change", 1.0),
    ]
    assert [each.what for each in found] == [
        "AAPL splits 2 for 1 on 2024-03-05.",
        "AAPL splits 1 for 10 on 2024-03-05.",
        "AAPL pays a dividend of 0.24 per share on 2024-03-05.",
        "AAPL becomes APLX on 2024-03-05.",
    ]
    assert {each.begins for each in found} == {MIDNIGHT}


@pytest.mark.parametrize(
    "changes",
    [{"new_rate": None}, {"new_rate": "x"}, {"new_rate": 0}, {"ex_date": "soon"}, {"ex_date": None}, {"symbol": None}],
)
def test_what_cannot_be_read_is_reported_and_rescales_nothing(changes):
    (found,) = actions_of({"forward_splits": [SPLIT | changes]}, ("AAPL",))
    assert (found.kind, found.factor) == ("unknown", 1.0)
    assert "s-1 (forward_splits) cannot be read: it" in found.what
    assert [each.kind for each in actions_of({"forward_splits": [7]}, ("AAPL",))] == ["unknown"]
    assert list(actions_of([], ("AAPL",))) == list(actions_of({"forward_splits": None}, ("AAPL",))) == []


def at(clock: str) -> np.datetime64:
    return np.datetime64(f"2024-03-{clock}", "ns")


def test_they_are_requested_twice_a_day_and_each_is_told_once():
    asked, split = [], CorporateAction("s-1", "AAPL", "split", MIDNIGHT, 0.5, "")

    def request(first, last):
        asked.append((str(first), str(last)))
        return [split] if last == date(2024, 3, 5) else []

    actions = ActionsOfTheDay(request)
    times = ("04T15:00", "05T04:59", "05T05:00", "05T06:00", "05T14:00")
    found = [actions.since(at("01T21:00"), at(now)) for now in times]
    assert found == [[], [], [split], [], []]
    assert asked == [("2024-03-01", "2024-03-04"), ("2024-03-04", "2024-03-05"), ("2024-03-05", "2024-03-05")]


def test_an_outage_is_told_once_and_they_are_requested_again_a_minute_later():
    answers = [BarsUnavailable("no line"), BarsUnavailable("no line"), []]

    def request(first, last):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    actions = ActionsOfTheDay(request)
    told = [actions.since(at("04T15:00"), at(f"04T15:0{minute}")) for minute in (0, 0, 1, 2, 3)]
    assert [[each.kind for each in found] for found in told] == [["unknown"], [], [], [], []]
    assert told[0][0].what == "The corporate actions of 2024-03-04 are not known: no line"
    assert not answers


def test_the_feed_reports_the_split_of_the_day_before_its_first_bar(server):
    from tests.live.alpaca.test_feed import Session

    session = Session(server)
    first = session.clock.now.astype("datetime64[D]")
    server.market_data.corporate_actions = {
        "forward_splits": [SPLIT | {"symbol": session.symbols[0], "ex_date": str(first)}]
    }
    session.record(*range(session.market.n_bars))
    session.start()
    session.close_of(5, plus=5)

    event = session.next()

    session.feed.close()
    assert isinstance(event, CorporateAction)
    assert (event.kind, event.factor) == ("split", 0.5)
    (asked,) = server.market_data.asked_for_actions
    assert asked["symbols"] == ",".join(session.symbols)
    assert asked["start"] <= str(first) == asked["end"]
