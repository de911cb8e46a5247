"""Keys that Alpaca refuses: a mistake at a first start, and an outage that may pass while a session trades. Real money
is refused before any server is asked."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live import connections
from ml_pipeline.live.alpaca import client
from tests.live.alpaca.timed_session import Machine, timed_session
from tests.live.loop.test_trading_loop import events_of


@pytest.fixture
def machine(monkeypatch, server):
    machine = Machine(monkeypatch, server)
    monkeypatch.setattr(connections, "_now_s", lambda: machine.ran_s)
    monkeypatch.setattr(connections, "_sleep", machine.run)
    return machine


def at_server(server):
    return {"alpaca_url": server.url, "alpaca_stream_url": server.stream_url}


@pytest.mark.parametrize("request_", ["GET", "POST /v2/orders", "DELETE"])
def test_one_refusal_of_the_keys_ends_nothing(tmp_path, machine, server, open_broker, request_):
    server.trading.exchange.fills = "on demand" if request_ == "DELETE" else "at once"
    faults, counts = [], []

    def at(minutes):
        if minutes >= 5 and not faults:
            faults.append(server.faults.answer(request_, 401, {"code": 40110000, "message": "unauthorized"}))
            counts.append(len(server.trading.exchange.orders))

    result = timed_session(tmp_path, machine, open_broker(), n_bars=12, at=at).run()

    assert result.status == "stopped"
    assert faults[0].met == 1
    (away,) = events_of(result.folder, "broker_away")
    assert "does not accept these keys (status 401)" in away["sentence"]
    assert len(events_of(result.folder, "broker_back")) == 1
    assert len(server.trading.exchange.orders) > counts[0]


def test_keys_that_stay_refused_end_the_session_and_the_next_start_waits_for_them(
    tmp_path, machine, server, open_broker
):
    def at(minutes):
        if minutes >= 5:
            server.faults.answer("", 401, times=10**6)

    result = timed_session(tmp_path, machine, open_broker(), n_bars=30, at=at, unreachable_for="3m").run()

    assert (result.status, result.asked, result.again) == ("failed", False, True)
    assert "does not accept these keys" in result.reason
    assert "This lasted for more than 3 minutes (unreachable_for); positions are held." in result.reason

    server.faults.clear()
    fault = server.faults.answer("GET /v2/account", 401, times=2)
    again = timed_session(tmp_path, machine, None, n_bars=4, at=lambda minutes: None, **at_server(server)).run()
    assert fault.met == 2
    assert again.status == "stopped"


def test_keys_that_are_refused_at_a_first_start_are_a_mistake(tmp_path, machine, server):
    fault = server.faults.answer("GET /v2/account", 401, times=10)

    with pytest.raises(UserError, match="does not accept these keys"):
        timed_session(tmp_path, machine, None, n_bars=4, at=lambda minutes: None, **at_server(server)).run()

    assert fault.met == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"live": True}, "the settings do not allow it"),
        ({"real_money": True}, "--live is not given"),
        ({"live": True, "real_money": True}, "there is no terminal"),
        ({"live": True, "real_money": True, "broker": "simulated"}, "the broker is simulated"),
        ({"live": True, "real_money": True, "broker": "own:Broker"}, "the broker is own:Broker"),
    ],
)
def test_real_money_is_refused_before_a_server_is_asked(tmp_path, machine, server, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        timed_session(
            tmp_path, machine, None, n_bars=4, at=lambda minutes: None, **{**at_server(server), **settings}
        ).run()

    assert server.faults.requests == []
    assert not (tmp_path / "live").exists()


def test_after_a_long_outage_the_next_start_closes_the_position_before_anything_else(
    tmp_path, machine, server, open_broker, monkeypatch
):
    monkeypatch.setattr(client, "_FIRST_WAIT_S", 10.0)  # a request that fails is not repeated within its call
    exchange, done = server.trading.exchange, []

    def at(minutes: float) -> None:
        if minutes > 5 and exchange.positions and not done:
            done.append(minutes)
            server.faults.cut("", times=1_000_000)

    settings = {"on_unreachable": "flatten", "unreachable_for": "2m"}
    first = timed_session(tmp_path, machine, open_broker(), n_bars=40, at=at, **settings).run()
    assert (first.status, first.again) == ("failed", True), first.reason
    assert "for more than 2 minutes (unreachable_for); the next start closes all positions." in first.reason
    held, before = exchange.positions["AAPL"], len(exchange.orders)
    server.faults.clear()

    second = timed_session(tmp_path, machine, open_broker(), n_bars=10, at=lambda minutes: None, **settings).run()

    assert (second.status, second.flat, second.asked) == ("stopped", True, True), second.reason
    (closing,) = [*exchange.orders.values()][before:]
    assert (closing.sign * closing.quantity, closing.status) == (-held, "filled")
    assert exchange.positions == {}
