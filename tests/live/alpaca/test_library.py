"""The private parts of alpaca-py and requests that `live.alpaca.library` uses; a test says which of them is gone."""

import inspect

import pytest

from ml_pipeline.live.alpaca.library import alpaca_module, send_by

pytest.importorskip("alpaca.common", reason="Alpaca's account needs an extra")

STREAMS = [
    ("trading.stream", "TradingStream"),
    ("data.live.stock", "StockDataStream"),
    ("data.live.crypto", "CryptoDataStream"),
]


def says(library: str, name: str, function: str) -> str:
    return f"{library} has no {name} any more, or another one: see {function} in live/alpaca/library.py"


def test_a_client_sends_by_the_session_that_it_is_given():
    client = alpaca_module("trading.client").TradingClient("key", "secret", paper=True)
    for name in ("_retry", "_session"):
        assert name in vars(client), says("alpaca-py's TradingClient", name, "send_by")

    class Session:
        def request(self, *_arguments, **_options):
            raise OSError("sent")

    send_by(Session(), client)
    with pytest.raises(OSError, match="sent"):
        client.get("/account")


@pytest.mark.parametrize(("module", "kind"), STREAMS)
def test_streams_connect_run_and_end_by_the_names_that_are_replaced(module, kind):
    stream_class = getattr(alpaca_module(module), kind)
    for name, function in [("_start_ws", "bounded_stream"), ("_run_forever", "_run_forever")]:
        assert inspect.iscoroutinefunction(getattr(stream_class, name, None)), says(kind, name, function)
    stream = stream_class("key", "secret")
    for name in ("_reconnect_min_backoff", "_reconnect_max_backoff"):
        assert name in vars(stream), says(kind, name, "_run_forever")
    assert "_should_run" in vars(stream), says(kind, "_should_run", "_tell_to_end")
    assert "_should_run" in inspect.getsource(stream_class._run_forever), says(kind, "_should_run", "_tell_to_end")


def test_order_updates_are_dispatched_by_the_name_that_is_replaced():
    stream_class = alpaca_module("trading.stream").TradingStream
    dispatch = getattr(stream_class, "_dispatch", None)
    assert inspect.iscoroutinefunction(dispatch), says("TradingStream", "_dispatch", "listening_stream")
    assert '"stream"' in inspect.getsource(dispatch), says("TradingStream", "_dispatch", "listening_stream")


def test_a_response_of_requests_shows_the_content_that_is_set():
    import requests

    from ml_pipeline.live.alpaca.library import _set_content

    response = _set_content(requests.Response(), b'{"a": 1}')
    assert response.content == b'{"a": 1}', says("requests' Response", "_content", "_set_content")
    assert response.json() == {"a": 1}
