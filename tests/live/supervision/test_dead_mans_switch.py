"""The address is called while the session works, and at an end that nobody asked for with /fail; it costs no time."""

import threading

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.supervision.dead_mans_switch import DeadMansSwitch
from tests.live.alerting.webhook_receiver import receiving
from tests.live.loop.sessions import deploy, session, write_prices
from tests.models.rl.core.workers.probes import wait_until

CALL, FAIL = "GET /hook/SECRET", "POST /hook/SECRET/fail"


def quick(url: str, **settings: float) -> DeadMansSwitch:
    return DeadMansSwitch(url, **{"works": lambda: True, "every_s": 0.001, "again_s": 0.001, **settings})


def test_it_calls_again_and_again_until_the_end():
    with receiving() as receiver, quick(receiver.url) as switch:
        assert receiver.waits_for(5)
        switch.close(within_s=60)
        assert {*receiver.calls} == {CALL}
    assert switch.take_outages() == []


def test_it_waits_between_two_calls():
    with receiving() as receiver, quick(receiver.url, every_s=1_000.0) as switch:
        assert receiver.waits_for(1)
        switch.close(within_s=60)
        assert receiver.calls == [CALL]


def test_a_loop_that_hangs_is_silence():
    asked = threading.Semaphore(0)

    def hangs() -> bool:
        asked.release()
        return False

    with receiving() as receiver:
        with quick(receiver.url, works=hangs):
            assert all(asked.acquire(timeout=60) for _ in range(5))
        assert receiver.calls == []


def test_an_error_is_a_failure_with_its_reason():
    with receiving() as receiver:
        with pytest.raises(UserError), quick(receiver.url, every_s=1_000.0):
            raise UserError("The account\ndiffers.")
        assert receiver.waits_for(2)
        assert receiver.calls == [CALL, FAIL]
        assert receiver.seen == ["", "The account differs."]


def test_fail_goes_before_the_query():
    with receiving() as receiver:
        with quick(f"{receiver.url}/?status=up", every_s=1_000.0) as switch:
            switch.fail("A loss limit ended the session.")
            switch.fail("another reason")
        assert receiver.waits_for(2)
        assert receiver.calls[-1] == "POST /hook/SECRET/fail?status=up"
        assert receiver.seen[-1] == "A loss limit ended the session."


@pytest.mark.parametrize(("fault", "why"), [(500, "it answered 500"), (404, "it answered 404"), ("drop", "")])
def test_an_outage_is_told_once_without_the_secret(fault, why):
    with receiving(*[fault] * 5, "take", fault, "take") as receiver, quick(receiver.url) as switch:
        assert receiver.waits_for(9)
        switch.close(within_s=60)
    first, second = switch.take_outages()
    assert first == second
    assert first.startswith(f"127.0.0.1 does not take the heartbeat ({why}")
    assert "SECRET" not in first


def test_a_redirect_is_an_outage():
    with receiving("redirect", "take") as receiver, quick(receiver.url) as switch:
        assert receiver.waits_for(2)
        switch.close(within_s=60)
        assert {*receiver.calls} == {CALL}
    (outage,) = switch.take_outages()
    assert "it answered 302" in outage


def test_a_server_that_hangs_is_left_after_its_time():
    with receiving("hang", "take") as receiver, quick(receiver.url, timeout_s=0.05) as switch:
        assert receiver.waits_for(2)
        outages = wait_until(switch.take_outages)
        switch.close(within_s=60)
    assert "timed out" in outages[0]


def test_a_server_that_hangs_does_not_hold_up_the_end():
    with receiving("hang") as receiver:
        switch = quick(receiver.url, timeout_s=60.0).__enter__()
        assert receiver.waits_for(1)
        thread = switch._thread
        switch.close(within_s=0.01)
        assert thread.is_alive()
        receiver.behaviours[:] = ["take"]
        receiver.released.set()
        thread.join(60)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/SEC RET\r\nHost: x", "http://127.0.0.1:1/\N{SNOWMAN}SECRET"])
def test_an_address_that_cannot_be_called_raises_nothing(url):
    with quick(url) as switch:
        (outage,) = wait_until(switch.take_outages)
        assert "SEC" not in outage


def test_without_an_address_nothing_runs():
    with DeadMansSwitch(None, works=lambda: True) as switch:
        switch.fail("It failed.")
        assert switch._thread is None
    switch.close()


@pytest.fixture
def replay(tmp_path):
    write_prices(tmp_path / "prices.csv", ["A"])
    return deploy(tmp_path / "model", ["A"]), tmp_path / "prices.csv"


def written_in(folder) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_session_calls_it_and_writes_the_address_nowhere(tmp_path, replay):
    model, prices = replay
    with receiving() as receiver:
        result = session(model, tmp_path / "live", prices=prices, heartbeat_url=receiver.url).run()
        assert receiver.waits_for(1)
        assert {*receiver.calls} == {CALL}
    assert result.asked
    assert b"SECRET" not in written_in(tmp_path / "live")


def test_an_end_that_nobody_asked_for_is_a_failure(tmp_path, replay):
    model, prices = replay
    with receiving() as receiver:
        limit = {"guard_drawdown": 0.005, "heartbeat_url": receiver.url}
        result = session(model, tmp_path / "live", prices=prices, **limit).run()
        assert receiver.waits_for(2)
        assert receiver.calls[-1] == FAIL
        assert receiver.seen[-1] == result.reason


def test_a_failing_server_is_told_once_in_the_log(tmp_path, replay, monkeypatch):
    model, prices = replay
    with receiving(503) as receiver:
        outage = "The server is away."
        told = [outage]
        monkeypatch.setattr(DeadMansSwitch, "take_outages", lambda self: [told.pop()] if told else [])
        trading = session(model, tmp_path / "live", prices=prices, heartbeat_url=receiver.url)
        assert trading.run().asked
    assert trading.told.count(outage) == 1
    assert outage.encode() in (tmp_path / "live" / "NAME" / "live.jsonl").read_bytes()
