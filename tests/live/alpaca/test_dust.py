"""A session at Alpaca whose positions are closed leaves nothing in the account."""

from decimal import Decimal

import numpy as np
import pytest

from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.live.supervision.requests import ask
from tests.live.loop.sessions import deploy
from tests.live.loop.test_trading_loop import events_of


def write_bars(path, symbol, n_bars=160):
    """Minutes of a market session in New York, or for crypto, of a Sunday."""
    generator = np.random.default_rng(3)
    begins = np.datetime64("2024-03-03T15:00" if "/" in symbol else "2024-03-04T15:00", "s")
    times = begins + np.arange(n_bars) * np.timedelta64(1, "m")
    closes = (100 * np.exp(generator.normal(0, 0.01, n_bars).cumsum())).round(2)
    bars = zip((str(time).replace("T", " ") for time in times), closes, strict=True)
    rows = [f"{time},{symbol},{close},{close + 0.1},{close - 0.1},{close},9" for time, close in bars]
    path.write_text("\n".join(["time,symbol,open,high,low,close,volume", *rows]) + "\n")
    return path


def trading_at(broker, server, tmp_path, *, name, symbol="AAPL", flatten_at=None):
    """A replay in the account at the stand-in, whose prices are the closes; flatten_at: number of a bar."""
    settings = {"model": tmp_path / "model", "root": tmp_path, "name": name, "broker": "simulated"}
    config = paper_trade_config({**settings, "replay": tmp_path / "bars.csv"})
    seen, broker.dust = [], []

    def closed(bars):
        broker.dust += [n for n in server.trading.exchange.positions.values() if abs(n) < Decimal("1e-6")]
        server.trading.exchange.prices = {symbol: str(bars.close[0])}
        seen.append(bars)
        if len(seen) == flatten_at:
            ask(tmp_path / name, "flatten")

    broker.market_closed_bar = closed
    return PaperTrading(config, broker=broker)


@pytest.mark.parametrize("symbol", ["AAPL", "BTC/USD"])
def test_a_session_that_was_flattened_leaves_nothing_and_the_next_one_starts(open_broker, server, tmp_path, symbol):
    write_bars(tmp_path / "bars.csv", symbol)
    deploy(tmp_path / "model", [symbol], action_mode="target_weights", allow_short=False)  # often exactly flat
    exchange = server.trading.exchange

    broker = open_broker(symbols=[symbol])
    ended = trading_at(broker, server, tmp_path, name="first", symbol=symbol, flatten_at=150).run()

    assert (ended.status, ended.flat) == ("stopped", True), ended.reason
    assert len([order for order in exchange.orders.values() if order.side == "sell"]) > 10  # exits
    assert broker.dust == []
    assert exchange.positions == {}
    again = trading_at(open_broker(symbols=[symbol]), server, tmp_path, name="second", symbol=symbol)
    again.stop.request("Enough.")
    assert again.run().reason == "Enough."


def test_what_is_below_the_smallest_order_counts_as_flat_and_is_said(open_broker, server, tmp_path):
    write_bars(tmp_path / "bars.csv", "AAPL")
    deploy(tmp_path / "model", ["AAPL"], action_mode="target_weights", allow_short=False)
    server.trading.exchange.positions = {"AAPL": Decimal("0.0000000004")}
    trading = trading_at(open_broker(), server, tmp_path, name="first")
    told = []
    trading._say = told.append
    trading.stop.request("Enough.")

    assert trading.run().reason == "Enough."

    assert any("0.0000000004 AAPL is left over" in each for each in told)


def test_what_an_exit_leaves_is_an_alert_once(open_broker, server, tmp_path):
    """A fee of crypto may leave less than the smallest order."""
    write_bars(tmp_path / "bars.csv", "AAPL")
    deploy(tmp_path / "model", ["AAPL"], action_mode="target_weights", allow_short=False)
    broker = open_broker()
    trading = trading_at(broker, server, tmp_path, name="first", flatten_at=60)
    get = broker._rest.get

    def with_dust(path, *parameters):
        """Nothing is held, and Alpaca reports a rest."""
        answer = get(path, *parameters)
        return answer or [{"symbol": "AAPL", "qty": "0.0000000004", "side": "long"}] if path == "/positions" else answer

    broker._rest.get = with_dust

    assert trading.run().flat

    told = [each["sentence"] for each in events_of(tmp_path / "first", "alert") if each["guard"] == "left_over"]
    assert told == ["0.0000000004 AAPL is left over: it is below the smallest order and counts as flat."]
