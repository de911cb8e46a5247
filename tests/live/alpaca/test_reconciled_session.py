"""A session at Alpaca's account, bar by bar: its shorts are whole shares, and reconciling it leaves nothing open."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import reconcile
from ml_pipeline.live.session import PaperTrading
from tests.live.alpaca import test_protected_session as protected
from tests.live.alpaca.test_kills import Killed
from tests.live.reconciliation.test_mixtures import assert_explained
from tests.live.reconciliation.test_reading import MARKET, deploy, write_prices

N_BARS = 16
OPEN = np.datetime64("2024-03-04T14:30", "ns")  # half past nine in New York
STOCKS = replace(MARKET, symbols=("AAPL", "TSLA"), times=MARKET.times - (MARKET.times[0] - OPEN))


@pytest.mark.slow
@pytest.mark.parametrize("limit_bps", [None, pytest.param(5.0, marks=pytest.mark.long)])
def test_a_session_that_shorts_is_explained_to_the_cent(open_broker, server, tmp_path, limit_bps):
    exchange = server.trading.exchange
    exchange.fills = "on demand"
    broker = open_broker()

    def close_bar(bars):
        names = ("open", "high", "low", "close")
        rows = zip(*(getattr(bars, name).tolist() for name in names), strict=True)
        exchange.close_bar(dict(zip(STOCKS.symbols, rows, strict=True)))

    broker.market_closed_bar = close_bar
    prices = write_prices(tmp_path / "prices.csv", STOCKS, N_BARS)
    model = deploy(tmp_path / "run", market=STOCKS, action_mode="target_weights")
    values = {"model": model, "root": tmp_path / "live", "name": "day", "broker": "simulated", "replay": prices}
    config = paper_trade_config({**values, **({} if limit_bps is None else {"limit_bps": limit_bps})})
    result = PaperTrading(config, broker=broker).run()

    found = reconcile(read_session(result.folder))
    causes = {each.cause: each for each in found.attribution.causes}
    assert "rounded" in causes
    assert "unexplained" not in causes
    assert all(each.times for each in causes.values())
    assert abs(found.attribution.rounding) < 0.005


@pytest.mark.slow
def test_the_fees_of_crypto_are_explained_to_the_cent(open_broker, server, tmp_path):
    exchange, coins = server.trading.exchange, replace(STOCKS, symbols=("BTC/USD", "ETH/USD"))
    exchange.fills = "on demand"
    broker = open_broker(symbols=coins.symbols)

    def close_bar(bars):
        rows = zip(*(getattr(bars, name).tolist() for name in ("open", "high", "low", "close")), strict=True)
        exchange.close_bar(dict(zip(coins.symbols, rows, strict=True)))

    broker.market_closed_bar = close_bar
    prices = write_prices(tmp_path / "prices.csv", coins, N_BARS)
    model = deploy(tmp_path / "run", market=coins, action_mode="target_weights", allow_short=False)
    values = {"model": model, "root": tmp_path / "live", "name": "day", "broker": "simulated", "replay": prices}
    result = PaperTrading(paper_trade_config(values), broker=broker).run()

    found = reconcile(read_session(result.folder))
    causes = {each.cause: each for each in found.attribution.causes}
    assert "unexplained" not in causes
    assert abs(found.attribution.rounding) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"lot_size": 0.0, "size_at": "fill"}, marks=pytest.mark.long)],
    ids=["as in the backtest", "rounded and sized before the fill"],
)
def test_a_session_with_stops_and_targets_at_alpaca_is_explained_to_the_cent(server, tmp_path, changes):
    """A position is closed at its stop while the session is down; then the session continues."""
    protected.write_prices(tmp_path / "all.csv")
    prices = tmp_path / "prices.csv"
    prices.write_text("\n".join((tmp_path / "all.csv").read_text().splitlines()[: 3 * N_BARS]) + "\n")
    model = protected.deploy(tmp_path / "model", ["AAPL"], **protected.RULES | changes)
    exchange = server.trading.exchange
    market = protected.Market(exchange, tmp_path / "all.csv")
    killed = []

    def next_item(feed, timeout_s):
        if market.done > 20 and exchange.positions and not killed:
            killed.append(True)
            raise Killed
        return protected.Market.next_item(market, feed, timeout_s)

    market.check, replayed = lambda: None, SimpleNamespace(next_item=next_item)
    with pytest.raises(Killed):
        protected.run(server, model, tmp_path / "live", prices, replayed)
    exchange.close_bar({"AAPL": (100, 500, 1, 100)})  # through every stop and target
    exchange.prices = {"AAPL": market.opens[market.done]}
    result = protected.run(server, model, tmp_path / "live", prices, replayed)

    found = reconcile(read_session(result.folder))
    assert_explained(found)
    assert abs(found.attribution.rounding) < 0.005
    assert any(found.attribution.rows["exited_AAPL"])
