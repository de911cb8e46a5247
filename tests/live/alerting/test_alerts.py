"""Alerts tell what happens, each guard once in a while with a count."""

import math
import sys

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.alerting.alerts import ALERTS, NOT_SENT, Alerts, Message, open_alerts
from ml_pipeline.live.record.session_log import EVENTS
from tests.live.alerting.webhook_receiver import receiving

BAR = np.datetime64("2026-03-02T12:00", "ns")


class Inbox:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.closed = 0

    def post(self, message: Message) -> None:
        self.messages.append(message)

    def take_failures(self) -> list[str]:
        return ["not delivered"]

    def end(self) -> None:
        pass

    def close(self, *, within_s: float) -> None:
        self.closed += 1

    @property
    def texts(self) -> list[str]:
        return [message.body for message in self.messages]


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def refusal(guard: str, sentence: str = "The order is refused.") -> dict:
    return {"guard": guard, "symbol": "A", "value": 2.0, "limit": 1.0, "sentence": sentence}


def test_an_event_is_told_in_words_under_the_name_of_the_session():
    inbox = Inbox()
    Alerts("eurusd", [inbox]).tell("refusal", BAR, refusal("guard_gross"))
    assert inbox.messages == [("eurusd", "The order is refused.", "warning")]


def test_each_event_of_the_log_is_sent_or_belongs_to_normal_trading():
    assert {*ALERTS} | NOT_SENT == {*EVENTS}
    assert not {*ALERTS} & NOT_SENT


def test_the_same_guard_is_told_once_in_a_while_with_a_count():
    inbox, clock = Inbox(), Clock()
    alerts = Alerts("s", [inbox], every_s=600, clock=clock)
    for second in (0, 1, 599.9, 600, 601):
        clock.now = 1_000.0 + second
        alerts.tell("refusal", BAR, refusal("guard_gross"))
    alerts.tell("refusal", BAR, refusal("guard_order"))
    assert inbox.texts == [
        "The order is refused.",
        "The order is refused. (and 2 times more since the last alert)",
        "The order is refused.",
    ]


def test_what_happens_to_the_account_is_told_apart_by_its_kind():
    inbox = Inbox()
    alerts = Alerts("s", [inbox], clock=Clock())
    for kind in ("split", "deposit", "deposit"):
        alerts.tell("adjustment", BAR, {"kind": kind, "sentence": f"Booked: {kind}."})
    for kind in ("clock", "foreign_trade", "notice"):
        alerts.tell("alert", BAR, {"guard": kind, "sentence": f"See {kind}."})
    assert inbox.texts == ["Booked: split.", "Booked: deposit.", "See clock.", "See foreign_trade.", "See notice."]


def test_the_end_is_told_always_and_with_what_was_not():
    inbox = Inbox()
    alerts = Alerts("s", [inbox], clock=Clock())
    for _ in range(3):
        alerts.tell("broker_away", BAR, {"sentence": "The broker cannot be reached."})
    for _ in range(2):
        alerts.tell("stop", BAR, {"why": "Asked to stop.", "flat": False})
    assert inbox.texts[0] == "The broker cannot be reached."
    end = "The session has stopped: Asked to stop. The account holds its positions."
    assert inbox.texts[1:] == [f"{end} Not sent before: broker_away 2 times."] * 2


def test_each_time_is_told_where_it_is_set():
    inbox = Inbox()
    alerts = Alerts("s", [inbox], every_s=0.0, clock=Clock())
    for _ in range(3):
        alerts.tell("gap", BAR, {"sentence": "Bars are missing."})
    assert len(inbox.messages) == 3


@pytest.mark.parametrize("event", sorted(NOT_SENT))
def test_what_happens_on_every_bar_is_not_told(event):
    inbox = Inbox()
    Alerts("s", [inbox]).tell(event, BAR, {"sentence": "x"})
    assert inbox.messages == []


@pytest.mark.parametrize(
    ("event", "values", "text"),
    [
        ("start", {"symbols": ["A", "B"], "model": "m", "version": "v3", "broker": "alpaca", "settings": {"x": 1}},
         "The session trades A, B with m v3, broker alpaca."),
        ("start", {"symbols": [*"ABCDEFG"], "model": "m", "version": None, "broker": "simulated"},
         "The session trades A, B, C, D, E ... with m, broker simulated."),
        ("stop", {"why": "The data ended.", "flat": True},
         "The session has stopped: The data ended. The account is flat."),
        ("stop", {"why": "It failed", "flat": None}, "The session has stopped: It failed."),
        ("model", {"from": "v1", "to": "v2", "why": "promoted"},
         "The session trades model v2 in place of v1: promoted."),
        ("retrain", {"state": "failed", "seconds": 3}, "retrain: state failed, seconds 3."),
        ("broker_back", {}, "broker back."),
    ],
)  # fmt: skip
def test_events_without_a_sentence_get_one(event, values, text):
    inbox = Inbox()
    Alerts("s", [inbox]).tell(event, None, values)
    assert inbox.texts == [text]


def test_whatever_an_event_holds_can_be_told():
    inbox = Inbox()
    odd = {"sentence": "x\ny\x1b[31m" + "z" * 9_000, "value": math.nan, "limit": np.float64(math.inf), "time": BAR,
           "rows": np.ones((2, 2)), "n": np.int64(3), "why": {1: {2, 3}}, "flag": np.True_}  # fmt: skip
    Alerts("s", [inbox]).tell("difference", BAR, odd)
    (message,) = inbox.messages
    assert len(message.body) <= 1_500
    assert message.body.isprintable()


def test_without_a_receiver_nothing_happens():
    with Alerts("s") as alerts:
        alerts.tell("start", None, {})
        assert alerts.take_failures() == []


def test_what_was_not_delivered_is_given_to_the_log_and_the_end_closes():
    inbox = Inbox()
    with Alerts("s", [inbox]) as alerts:
        assert alerts.take_failures() == ["not delivered"]
    assert inbox.closed == 1


def test_an_error_that_ends_the_session_is_told_once():
    inbox = Inbox()
    alerts = Alerts("s", [inbox])
    with pytest.raises(UserError), alerts:
        raise UserError("Another session trades this account.")
    alerts = Alerts("s", [inbox])
    alerts.tell("stop", BAR, {"why": "It differs.", "flat": None})
    with pytest.raises(UserError), alerts:
        raise UserError("It differs.")
    assert inbox.texts == [
        "The session has stopped: Another session trades this account.",
        "The session has stopped: It differs.",
    ]


def test_the_environment_names_who_gets_it(monkeypatch):
    pytest.importorskip("apprise")
    with receiving() as receiver:
        monkeypatch.setenv("ML_PIPELINE_ALERT_URL", receiver.url.replace("http://", "json://"))
        with open_alerts(AlertConfig(), "s") as alerts:
            alerts.tell("stop", BAR, {"why": "The data ended.", "flat": True})
        (message,) = receiver.seen
    assert message["message"] == "The session has stopped: The data ended. The account is flat."


def test_without_apprise_the_extra_is_named(monkeypatch):
    monkeypatch.setenv("ML_PIPELINE_ALERT_URL", "json://SECRET")
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(UserError, match=r"Alerts need Apprise.*\[alerts\]") as refused:
        open_alerts(AlertConfig(), "s")
    assert "SECRET" not in str(refused.value)


def test_without_an_address_nobody_is_told(monkeypatch):
    monkeypatch.delenv("ML_PIPELINE_ALERT_URL", raising=False)
    with open_alerts(AlertConfig(), "s") as alerts:
        alerts.tell("stop", BAR, {"why": "The data ended.", "flat": True})
        assert alerts.take_failures() == []
