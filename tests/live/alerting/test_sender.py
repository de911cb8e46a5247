"""An address that hangs or fails costs trading nothing; what it does not get in the end is told."""

import socket
import threading
from collections.abc import Callable

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alerting.alerts import Message, Sender, apprise_senders
from tests.live.alerting.webhook_receiver import receiving
from tests.models.rl.core.workers.probes import wait_until

pytest.importorskip("apprise")


def message(body: str) -> Message:
    return Message("eurusd", body, "warning")


def sender_to(url: str) -> Sender:
    """A sender to a webhook of one's own, whose answer is waited for 60 s."""
    (sender,) = apprise_senders(url.replace("http://", "json://") + "?rto=60&cto=60", where="a test")
    sender._first_wait_s = 0.001
    return sender


class Service:
    """Takes messages as told. answers: for each try one, the last for all others."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = answers
        self.taken: list[str] = []
        self.n_tries = 0

    def __call__(self, told: Message) -> bool:
        answer = self.answers[min(self.n_tries, len(self.answers) - 1)]
        self.n_tries += 1
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self.taken.append(told.body)
        return answer


def sender(service: Callable[[Message], object], **settings: float) -> Sender:
    return Sender(service, "Slack", **{"first_wait_s": 0.001, **settings})


def no_thread_is_left() -> bool:
    return not any(thread.name.startswith("alerts") and thread.is_alive() for thread in threading.enumerate())


def test_messages_reach_a_webhook_in_their_order():
    with receiving() as receiver:
        to_webhook = sender_to(receiver.url)
        for i in range(20):
            to_webhook.post(message(f"message {i} – ü"))
        to_webhook.close(within_s=60)
        assert [each["message"] for each in receiver.seen] == [f"message {i} – ü" for i in range(20)]
        assert {(each["title"], each["type"]) for each in receiver.seen} == {("eurusd", "warning")}
    assert to_webhook.take_failures() == []
    assert no_thread_is_left()


@pytest.mark.parametrize("fault", [500, 429, "drop", "garbage"])
def test_a_fault_that_passes_is_tried_again(fault):
    with receiving(fault, fault, "take") as receiver:
        to_webhook = sender_to(receiver.url)
        to_webhook.post(message("hello"))
        assert receiver.waits_for(3)
        to_webhook.close(within_s=60)
        assert [each["message"] for each in receiver.seen] == ["hello"]
    assert to_webhook.take_failures() == []


def test_a_server_that_is_not_there_is_told_without_the_secret():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        to_webhook = sender_to(f"http://127.0.0.1:{closed.getsockname()[1]}/SECRET")
        to_webhook.post(message("hello"))
        failures = wait_until(to_webhook.take_failures)
        to_webhook.close(within_s=60)
    assert failures == ["JSON did not take an alert in 5 tries; `apprise -v -b test ADDRESS` shows the reason."]


def test_each_of_several_addresses_gets_each_alert_once():
    with receiving() as one, receiving(500, "take") as other:
        urls = " ".join(each.url.replace("http://", "json://") for each in (one, other))
        senders = apprise_senders(urls, where="a test")
        for each in senders:
            each._first_wait_s = 0.001
            each.post(message("hello"))
        assert other.waits_for(2)
        for each in senders:
            each.close(within_s=60)
        assert [each["message"] for each in (*one.seen, *other.seen)] == ["hello", "hello"]
        assert one.n_requests == 1


@pytest.mark.parametrize("url", ["https://hooks.example/SECRET", "nonsense://SECRET", "json://"])
def test_an_address_that_apprise_does_not_know_is_refused_without_showing_it(url):
    with pytest.raises(UserError, match=r"does not know an address in ML_PIPELINE_ALERT_URL.*jsons://HOST") as refused:
        apprise_senders(url, where="ML_PIPELINE_ALERT_URL")
    assert "SECRET" not in str(refused.value)


def test_an_address_is_in_no_log_of_a_library(caplog):
    caplog.set_level("DEBUG")
    with receiving(500, "take") as receiver:
        to_webhook = sender_to(receiver.url)
        to_webhook.post(message("hello"))
        assert receiver.waits_for(2)
        to_webhook.close(within_s=60)
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("fault", [False, RuntimeError("SECRET")])
def test_a_service_that_fails_is_told(fault):
    service = Service(fault)
    to_service = sender(service, tries=3)
    to_service.post(message("hello"))
    failures = wait_until(to_service.take_failures)
    to_service.close(within_s=60)
    assert failures == ["Slack did not take an alert in 3 tries; `apprise -v -b test ADDRESS` shows the reason."]
    assert service.n_tries == 3


def test_a_service_that_hangs_holds_up_neither_trading_nor_its_end():
    began, released = threading.Event(), threading.Event()

    def hang(told: Message) -> bool:
        began.set()
        return released.wait(100)

    to_service = sender(hang, most_waiting=3)
    to_service.post(message("first"))
    assert began.wait(60)
    for i in range(1_000):
        to_service.post(message(f"{i}"))
    assert to_service.take_failures() == ["An alert was dropped: 3 others wait for Slack."] * 997
    thread = to_service._thread
    to_service.close(within_s=0.01)
    assert to_service.take_failures() == ["Slack did not take the last 4 alerts within 0.01 s of the end."]
    released.set()
    thread.join(60)
    assert no_thread_is_left()


def test_what_waits_at_the_end_gets_one_more_try():
    service = Service(False, True)
    to_service = sender(service, first_wait_s=1_000.0)
    to_service.post(message("first"))
    assert wait_until(lambda: service.n_tries == 1)
    to_service.post(message("second"))
    to_service.close(within_s=60)
    assert service.taken == ["first", "second"]
    to_service.close()
    to_service.post(message("after the end"))
    assert no_thread_is_left()


class Waits(threading.Event):
    """Notes how long each wait was to be, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.noted_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.noted_s.append(float(timeout or 0.0))
        return False


def test_tries_are_ever_further_apart():
    to_service = sender(Service(False), first_wait_s=10.0, tries=6)
    to_service._ends = waits = Waits()
    to_service.post(message("hello"))
    wait_until(to_service.take_failures)
    to_service.close(within_s=60)
    assert waits.noted_s == [10.0, 20.0, 40.0, 60.0, 60.0]
