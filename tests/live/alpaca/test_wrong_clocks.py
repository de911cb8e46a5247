"""A clock that is wrong, this machine's or the exchange's, holds the session until both agree again."""

from datetime import timedelta

import numpy as np
import pytest

from ml_pipeline.live.alpaca import client
from tests.live.alpaca.timed_session import Machine, timed_session
from tests.live.loop.test_trading_loop import events_of

WRONG, RIGHT, END = 8, 16, 28  # minutes: when the clock becomes wrong, when it is set right, when the test ends


@pytest.fixture
def machine(monkeypatch, server):
    return Machine(monkeypatch, server)


def told_of_clocks(folder):
    sentences = [each["sentence"] for each in events_of(folder, "alert")]
    return [each for each in sentences if "clock" in each]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, -1, 45, -45, 180, -180, 86_400, -86_400])
@pytest.mark.parametrize("whose", ["machine", "exchange"])
def test_a_clock_that_is_set_holds_until_it_is_right_again(  # noqa: PLR0917
    tmp_path, machine, server, open_broker, whose, seconds
):
    counts = {}

    def set_by(span):
        if whose == "machine":
            machine.set_clock(span)
        else:
            server.trading.ahead += timedelta(seconds=span)

    def at(minutes):
        for moment, span in ((WRONG, seconds), (RIGHT, -seconds)):
            if minutes >= moment and moment not in counts:
                set_by(span)
                counts[moment] = len(server.trading.exchange.orders)
        if minutes >= WRONG + 2 and "held" not in counts:  # Alpaca's clock is asked for each minute
            counts["held"] = len(server.trading.exchange.orders)

    result = timed_session(tmp_path, machine, open_broker(), n_bars=END, at=at).run()

    assert result.status == "stopped"
    assert counts[WRONG] > 0
    ordered = counts[RIGHT] - counts["held"]
    alerts = told_of_clocks(result.folder)
    if abs(seconds) == 1:
        assert ordered > 0
        assert alerts == []
        return
    assert ordered == 0
    ahead = (seconds > 0) == (whose == "machine")
    assert f"{'ahead of' if ahead else 'behind'} the broker's: nothing is ordered" in alerts[0]
    assert "The clocks agree again" in alerts[1]
    assert len(alerts) == 2
    assert len(server.trading.exchange.orders) > counts[RIGHT]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [45, -45, 86_400, -86_400])
def test_a_session_that_starts_with_a_wrong_clock_orders_nothing_until_it_is_right(
    tmp_path, machine, server, open_broker, seconds
):
    counts = {}
    machine.set_clock(seconds)

    def at(minutes):
        if minutes >= RIGHT and not counts:
            counts["right"] = len(server.trading.exchange.orders)
            machine.set_clock(-seconds)

    result = timed_session(tmp_path, machine, open_broker(), n_bars=END, at=at).run()

    assert counts["right"] == 0
    assert len(server.trading.exchange.orders) > 0
    assert len(told_of_clocks(result.folder)) == 2


def test_the_clock_of_the_exchange_does_not_follow_this_machines(machine, server, open_broker):
    broker = open_broker()
    first = broker.now()
    for span in (0.5, -0.5, 86_400.0, -86_400.0):
        machine.set_clock(span)
        assert broker.now() == first
    machine.run(30.0)
    assert broker.now() - first == np.timedelta64(30, "s")


def test_the_clock_of_the_exchange_is_asked_for_each_minute_and_after_a_step(machine, server, open_broker):
    broker = open_broker()
    broker.now()

    def asked():
        return server.faults.requests.count("GET /v2/clock")

    before = asked()
    machine.run(59.0)
    broker.now()
    assert asked() == before
    machine.run(2.0)
    broker.now()
    assert asked() == before + 1
    machine.set_clock(-2.0)
    broker.now()
    assert asked() == before + 2


def test_the_way_to_the_server_and_back_is_no_difference(machine, server, open_broker, monkeypatch):
    broker = open_broker()
    trading_get = broker._rest.get

    def slow(path, parameters=None):
        machine.run(1.0)
        answer = trading_get(path, parameters)
        machine.run(1.0)
        return answer

    monkeypatch.setattr(broker._rest, "get", slow)
    broker._hours._read = None
    assert broker.now() == machine.right
    assert client._wall() == machine.right


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [180, -180, 86_400, -86_400])
def test_a_session_that_is_started_again_with_a_wrong_clock_waits_too(tmp_path, machine, server, open_broker, seconds):
    timed_session(tmp_path, machine, open_broker(), n_bars=WRONG, at=lambda minutes: None).run()
    counts = {"stopped": len(server.trading.exchange.orders)}
    assert counts["stopped"] > 0
    machine.set_clock(seconds)

    def at(minutes):
        if minutes >= 6 and "right" not in counts:
            counts["right"] = len(server.trading.exchange.orders)
            machine.set_clock(-seconds)

    result = timed_session(tmp_path, machine, open_broker(), n_bars=18, at=at).run()

    assert result.status == "stopped"
    assert counts["right"] == counts["stopped"]
    assert len(server.trading.exchange.orders) > counts["right"]
    assert len(told_of_clocks(result.folder)) == 2
