"""A webhook that hangs, fails or drops costs trading nothing; what it does not get in the end is told."""

import socket
import threading

import pytest

from ml_pipeline.live.alerting.alerts import Webhook
from tests.live.alerting.webhook_receiver import receiving
from tests.models.rl.core.workers.probes import wait_until


def quick(url: str, **settings: float) -> Webhook:
    return Webhook(url, **{"first_wait_s": 0.001, **settings})


def failures_of(webhook: Webhook) -> list[str]:
    """The next failures, waited for."""
    return wait_until(webhook.take_failures)


def no_thread_is_left() -> bool:
    return not any(thread.name == "webhook" and thread.is_alive() for thread in threading.enumerate())


def test_messages_arrive_in_their_order():
    with receiving() as receiver:
        webhook = quick(receiver.url)
        for i in range(20):
            webhook.post({"text": f"message {i} – ü"})
        webhook.close(within_s=60)
        assert [each["text"] for each in receiver.seen] == [f"message {i} – ü" for i in range(20)]
        assert receiver.headers[0]["Content-Type"] == "application/json"
    assert webhook.take_failures() == []
    assert no_thread_is_left()


@pytest.mark.parametrize("fault", [500, 503, 429, 408, "drop", "garbage"])
def test_a_fault_that_passes_is_tried_again(fault):
    with receiving(fault, fault, "take") as receiver:
        webhook = quick(receiver.url)
        webhook.post({"text": "hello"})
        assert receiver.waits_for(3)
        webhook.close(within_s=60)
        assert [each["text"] for each in receiver.seen] == ["hello"]
    assert webhook.take_failures() == []


@pytest.mark.parametrize("fault", [500, "drop"])
def test_what_could_not_be_delivered_is_told_without_the_secret(fault):
    with receiving(fault) as receiver:
        webhook = quick(receiver.url, tries=3)
        webhook.post({"text": "hello"})
        assert receiver.waits_for(3)
        webhook.close(within_s=60)
        assert receiver.n_requests == 3
    (told,) = webhook.take_failures()
    assert told.startswith("An alert was not delivered to 127.0.0.1 in 3 tries: ")
    assert "SECRET" not in told
    assert webhook.take_failures() == []


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_a_refusal_is_not_tried_again(status):
    with receiving(status) as receiver:
        webhook = quick(receiver.url)
        webhook.post({"text": "hello"})
        failures = failures_of(webhook)  # before the end, at which nothing is tried again
        webhook.close(within_s=60)
        assert receiver.n_requests == 1
    assert failures == [f"An alert was not delivered to 127.0.0.1 in 1 try: it answered {status}."]


def test_a_redirect_is_not_followed():
    with receiving("redirect") as receiver:
        webhook = quick(receiver.url)
        webhook.post({"text": "hello"})
        failures = failures_of(webhook)
        webhook.close(within_s=60)
        assert receiver.seen == []
    assert failures == ["An alert was not delivered to 127.0.0.1 in 1 try: it answered 302."]


def test_a_receiver_that_hangs_is_left_after_its_time():
    with receiving("hang", "take") as receiver:
        webhook = quick(receiver.url, timeout_s=0.05)
        webhook.post({"text": "hello"})
        assert receiver.waits_for(2)
        webhook.close(within_s=60)
        assert {each["text"] for each in receiver.seen} == {"hello"}  # a busy machine may answer too late once


def test_a_receiver_that_hangs_holds_up_neither_trading_nor_its_end():
    with receiving("hang") as receiver:
        webhook = quick(receiver.url, timeout_s=60.0, most_waiting=3)
        webhook.post({"text": "first"})
        assert receiver.waits_for(1)  # the thread waits for an answer
        for i in range(1_000):
            webhook.post({"text": f"{i}"})
        failures = webhook.take_failures()
        assert failures == ["An alert was dropped: 3 others wait for 127.0.0.1."] * 997
        webhook.close(within_s=0.01)
        assert webhook.take_failures() == ["127.0.0.1 did not take the last 4 alerts within 0.01 s of the end."]
        receiver.behaviours[:] = ["take"]
        receiver.released.set()
        webhook._thread.join(60)
    assert no_thread_is_left()


def test_what_waits_at_the_end_gets_one_more_try():
    with receiving(500) as receiver:
        webhook = quick(receiver.url, first_wait_s=1_000.0)
        webhook.post({"text": "first"})
        assert receiver.waits_for(1)
        webhook.post({"text": "second"})
        webhook.close(within_s=60)
        assert receiver.n_requests <= 3
    assert len(webhook.take_failures()) == 2


def test_a_server_that_is_not_there_is_told():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        webhook = quick(f"http://127.0.0.1:{closed.getsockname()[1]}/SECRET", tries=2)
        webhook.post({"text": "hello"})
        failures = failures_of(webhook)
        webhook.close(within_s=60)
    assert failures == [
        "An alert was not delivered to 127.0.0.1 in 2 tries: it cannot be reached (Connection refused)."
    ]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/SEC RET\r\nHost: x", "http://127.0.0.1:1/\N{SNOWMAN}SECRET"])
def test_an_address_that_is_wrong_raises_nothing(url):
    webhook = quick(url, tries=1)
    webhook.post({"text": "hello"})
    webhook.close(within_s=60)
    (told,) = webhook.take_failures()
    assert "SEC" not in told


def test_what_is_no_json_is_told():
    loop: dict = {}
    loop["self"] = loop
    webhook = quick("http://127.0.0.1:1/")
    webhook.post(loop)
    assert webhook.take_failures() == ["An alert could not be written as JSON (ValueError)."]
    webhook.close()
    webhook.close()
    webhook.post({"text": "after the end"})
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
    with receiving(500) as receiver:
        webhook = Webhook(receiver.url, first_wait_s=10.0, tries=6)
        webhook._ends = waits = Waits()
        webhook.post({"text": "hello"})
        failures_of(webhook)
        webhook.close(within_s=60)
    assert waits.noted_s == [10.0, 20.0, 40.0, 60.0, 60.0]
