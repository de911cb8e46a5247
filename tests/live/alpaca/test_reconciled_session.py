"""A session at Alpaca's account, bar by bar: its shorts are whole shares, and reconciling it leaves nothing open."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import reconcile
from ml_pipeline.live.session import PaperTrading
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
