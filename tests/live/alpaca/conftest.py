"""A server that speaks Alpaca's protocol, and the account there."""

from collections.abc import Callable, Iterator

import pytest

from ml_pipeline.live.alpaca.config import AlpacaConfig
from tests.models.rl.core.workers.probes import wait_until


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("alpaca.common", reason="Alpaca's account needs an extra")
    pytest.importorskip("uvicorn", reason="the server needs the extra of the dashboard")
    from tests.live.alpaca_server.server import KEY, SECRET, AlpacaServer

    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    with AlpacaServer() as started:
        yield started


def config_for(server, **changes) -> AlpacaConfig:
    settings = {"alpaca_url": server.url, "alpaca_stream_url": server.stream_url, "alpaca_timeout_s": 5.0}
    return AlpacaConfig(**{**settings, **changes})


@pytest.fixture
def open_broker(server) -> Iterator[Callable]:
    """Opens the account; what was opened is closed at the end."""
    from ml_pipeline.live.alpaca.broker import open_alpaca

    opened = []

    def start(*, listening: bool = True, symbols=(), **changes):
        broker = open_alpaca(config_for(server, **changes), symbols=symbols)
        opened.append(broker)
        assert not listening or broker._stream.wait_until_listening(30)
        return broker

    yield start
    for broker in opened:
        broker.close()
        assert not broker._stream._thread._thread.is_alive()


@pytest.fixture
def hasty(monkeypatch):
    """Waits for the market for a tenth of a second alone."""
    monkeypatch.setattr("ml_pipeline.live.alpaca.entry._LONGEST_WAIT_S", 0.1)


@pytest.fixture
def broker(open_broker):
    return open_broker()


def poll_until(broker, cursor, holds):
    """Polls until `holds` of all events since `cursor`; returns them and the cursor after them."""
    events = []

    def holds_now():
        nonlocal cursor
        more, cursor = broker.poll(cursor)
        events.extend(more)
        return holds(events)

    wait_until(holds_now)
    return events, cursor
