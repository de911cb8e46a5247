"""A session at Alpaca keeps the stop loss and the take profit of its backtest, also while it does not run."""

import csv
import random
from contextlib import closing, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from ml_pipeline.live.brokers.broker import BrokerUnavailable
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.connections import open_feed
from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.feeds.feed import CorporateAction
from ml_pipeline.live.orders import OrderManager
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.live.supervision.requests import ask
from ml_pipeline.trading.market.bar_set import BarSet
from tests.live.alpaca.conftest import config_for
from tests.live.alpaca.test_kills import Killed, kill_at_times
from tests.live.loop.sessions import ChangedFeed, backtest, deploy
from tests.live.loop.test_trading_loop import events_of

SYMBOL, N_BARS = "AAPL", 120
RULES = {
    **{"stop_loss": 0.01, "take_profit": 0.015, "size_at": "decision", "lot_size": 100.0, "fee_bps": 0.0},
    **{"initial_cash": 100_000.0, "max_position": 0.9, "features": ("log_return_1", "rsi_3")},
}


def write_prices(path, *, seed=0, split_at=N_BARS):
    """Minute bars within one session of the exchange, in whole cents; split_at: the bar before which 2 for 1 come."""
    generator = np.random.default_rng(seed)
    closes = 100 * np.exp(generator.normal(0, 0.006, N_BARS).cumsum())
    times = np.datetime64("2024-03-04T15:00", "s") + np.arange(N_BARS) * np.timedelta64(1, "m")
    lines = ["time,symbol,open,high,low,close,volume"]
    opened = 100.0
    closes[split_at:] /= 2
    for number, (time, close) in enumerate(zip(times, closes, strict=True)):
        opened /= 2 if number == split_at else 1
        high, low = max(opened, close) * 1.003, min(opened, close) * 0.997
        cells = ",".join(f"{price:.2f}" for price in (opened, high, low, close))
        lines.append(f"{str(time).replace('T', ' ')},{SYMBOL},{cells},100")
        opened = close * float(np.exp(generator.normal(0, 0.001)))
    path.write_text("\n".join(lines) + "\n")


class Market:
    """What the exchange does while the session waits for a bar. `seen`: what protected the position then."""

    def __init__(self, exchange, prices):
        self.exchange = exchange
        rows = list(csv.DictReader(prices.read_text().splitlines()))
        self.opens = [float(row["open"]) for row in rows]
        self.bars = [tuple(float(row[name]) for name in ("open", "high", "low", "close")) for row in rows]
        self.done = 0
        self.first = np.datetime64("2024-03-04T15:00", "m")
        exchange.prices = {SYMBOL: self.opens[0]}

    def next_item(self, feed, timeout_s):
        self.check()
        item = feed.next(timeout_s)
        if isinstance(item, BarSet):
            number = int((item.time - self.first) / np.timedelta64(1, "m"))
            if number == self.done:  # a restarted session sees a bar again, and the market has no second one
                self.exchange.close_bar({SYMBOL: self.bars[number]})
                self.done += 1
                self.exchange.prices = {SYMBOL: self.opens[min(self.done, N_BARS - 1)]}
        return item

    def check(self):
        """The position is protected as a whole, and once."""
        exchange = self.exchange
        held = exchange.positions.get(SYMBOL, 0)
        orders = [each for each in exchange.orders.values() if each.status in ("new", "held", "partially_filled")]
        assert {each.kind: each.left for each in orders} == ({"stop": abs(held), "limit": abs(held)} if held else {})
        assert len(orders) == (2 if held else 0)
        assert all(each.sign * held < 0 and each.valid == "gtc" for each in orders)


@pytest.fixture
def prices(tmp_path):
    write_prices(tmp_path / "prices.csv")
    return tmp_path / "prices.csv"


def run(server, model, root, prices, market):
    from ml_pipeline.live.alpaca.broker import open_alpaca

    values = {"model": model, "root": root, "name": "NAME", "broker": "simulated", "replay": prices}
    config = paper_trade_config(values)
    policy = load_deployed_policy(model, {"data": prices})
    broker = open_alpaca(config_for(server), symbols=(SYMBOL,), rules=policy.rules)
    try:
        feed = ChangedFeed(open_feed(config, policy), market.next_item)
        return PaperTrading(config, feed=feed, broker=broker).run()
    finally:
        broker.close()


def ledger(content):
    rows = list(csv.DictReader(content.decode().splitlines()))
    names = [name for name in rows[0] if name.startswith(("position", "filled", "exited"))]
    return [{name: float(row[name]) for name in names} for row in rows], [float(row["equity"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"allow_short": False}, {}, {"take_profit": None}, {"stop_loss": None}])
def test_a_session_at_alpaca_stops_and_takes_profit_where_its_backtest_does(server, tmp_path, prices, changes):
    model = deploy(tmp_path / "model", [SYMBOL], **{**RULES, **changes})
    market = Market(server.trading.exchange, prices)
    if "take_profit" in changes or "stop_loss" in changes:
        market.check = lambda: None

    result = run(server, model, tmp_path / "live", prices, market)

    assert result.status == "finished", result.reason
    actual, equity = ledger((result.folder / "ledger.csv").read_bytes())
    expected, wanted = ledger(backtest(model, prices, tmp_path / "expected.csv"))
    n_exits = sum(bool(row[f"exited_{SYMBOL}"]) for row in expected)
    assert n_exits, "nothing was tested"
    assert actual == expected
    assert equity == pytest.approx(wanted, abs=0.01 * 1_000 * n_exits)  # Alpaca's stops and targets are whole cents


def run_until_killed_with_a_position(server, model, folder, prices, market):
    def next_item(feed, timeout_s):
        if market.done > 20 and server.trading.exchange.positions:
            raise Killed
        return market.next_item(feed, timeout_s)

    with pytest.raises(Killed):
        run(server, model, folder, prices, SimpleNamespace(next_item=next_item))


@pytest.mark.slow
def test_a_position_is_closed_at_its_stop_while_the_session_is_down(server, tmp_path, prices):
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    market = Market(server.trading.exchange, prices)
    exchange = server.trading.exchange

    run_until_killed_with_a_position(server, model, tmp_path / "live", prices, market)
    held = exchange.positions[SYMBOL]
    exchange.close_bar({SYMBOL: (100, 500, 1, 100)})  # through every stop and target
    assert exchange.positions == {}
    exchange.prices = {SYMBOL: market.opens[market.done]}

    result = run(server, model, tmp_path / "live", prices, market)

    assert result.status == "finished", result.reason
    exited = [each for each in events_of(result.folder, "fill") if each["exit"] and each["quantity"] == -float(held)]
    told = exited[0]
    assert told["sentence"].endswith("by a stop or a target.")
    assert books(result.folder) == (float(exchange.positions.get(SYMBOL, 0)), pytest.approx(float(exchange.cash)))


@pytest.mark.slow
def test_a_stop_that_alpaca_replaced_by_its_own_is_a_difference_and_closes_nothing(server, tmp_path, prices):
    """Alpaca may replace a single order after a corporate action: the new one has another ID, and holds the shares."""
    model = deploy(tmp_path / "model", [SYMBOL], **{**RULES, "take_profit": None})
    exchange, market = server.trading.exchange, Market(server.trading.exchange, prices)
    market.check = lambda: None

    run_until_killed_with_a_position(server, model, tmp_path / "live", prices, market)
    (stop,) = [each for each in exchange.orders.values() if each.status == "new"]
    exchange.end(stop.client_order_id, "canceled")
    fields = {"symbol": SYMBOL, "qty": stop.quantity, "side": stop.side, "type": "stop", "time_in_force": "gtc"}
    exchange.submit({**fields, "stop_price": stop.stop_price, "client_order_id": "theirs"})
    held, sent = dict(exchange.positions), {*exchange.orders}

    result = run(server, model, tmp_path / "live", prices, market)

    assert (result.status, result.asked, result.flat) == ("stopped", False, False)
    assert "order theirs" in result.reason
    assert (exchange.positions, {*exchange.orders}) == (held, sent)
    assert not [each for each in events_of(result.folder, "order") if each["closing"]]


def books(folder):
    """(position, cash) of the session's books."""
    with closing(Journal(folder / JOURNAL_FILE, writes=False)) as journal:
        fills = journal.fills()
    assert len({fill.fill_id for fill in fills}) == len(fills)
    paid = sum(float(fill.quantity) * fill.price for fill in fills)
    return sum(fill.quantity for fill in fills), 100_000 - paid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "chance"), [(0, 0.02), *(pytest.param(seed, 0.04, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_killed_at_any_moment_every_position_is_protected_once(server, tmp_path, prices, monkeypatch, *, seed, chance):
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    market, result = Market(server.trading.exchange, prices), None
    with monkeypatch.context() as patched:
        kills = kill_at_times(patched, chance, random.Random(seed))
        while result is None:
            with suppress(Killed, BrokerUnavailable):
                result = run(server, model, tmp_path / "live", prices, market)

    assert len(kills) > 5, "nothing was tested"
    assert result.status == "finished", result.reason
    exchange = server.trading.exchange
    assert books(result.folder) == (float(exchange.positions.get(SYMBOL, 0)), pytest.approx(float(exchange.cash)))
    assert len([each for each in events_of(result.folder, "fill") if each["exit"]]) > 3
    assert not events_of(result.folder, "difference")
    market.check()


@pytest.mark.slow
def test_a_position_that_alpaca_does_not_protect_is_closed(server, tmp_path, prices):
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    body = {"code": 42210000, "message": "stop price must not be greater than base price / 1.001"}
    server.faults.answer("POST /v2/orders", 422, body, after=1)  # the first one is the entry

    result = run(server, model, tmp_path / "live", prices, Market(server.trading.exchange, prices))

    told = next(each for each in events_of(result.folder, "alert") if "refuses" in each["sentence"])
    assert told["sentence"] == f"The broker refuses a stop or target for {SYMBOL}, so it is closed: {body['message']}."
    closing_order = next(each for each in events_of(result.folder, "order") if each["closing"])
    assert closing_order["bar"] == told["bar"]


@pytest.mark.slow
def test_an_order_for_a_position_that_its_stop_has_closed_is_not_sent(server, tmp_path, prices, monkeypatch):
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    exchange, send, stopped = server.trading.exchange, OrderManager.send, []
    market = Market(exchange, prices)

    def send_late(self):
        if self.unsent and exchange.positions and not stopped:
            stopped.extend(each.request.client_order_id for each in self.unsent)
            exchange.close_bar({SYMBOL: (100, 500, 1, 100)})
            exchange.prices = {SYMBOL: market.opens[market.done]}
            assert exchange.positions == {}
        send(self)

    monkeypatch.setattr(OrderManager, "send", send_late)
    result = run(server, model, tmp_path / "live", prices, market)

    assert result.status == "finished", result.reason
    (name,) = stopped
    assert name not in exchange.orders
    with closing(Journal(result.folder / JOURNAL_FILE, writes=False)) as journal:
        order = journal.order(name)
    assert order.status == "canceled"
    assert order.reason == "its stop or target closed the position before the order was sent"
    assert books(result.folder) == (float(exchange.positions.get(SYMBOL, 0)), pytest.approx(float(exchange.cash)))


@pytest.mark.slow
def test_a_session_that_is_stopped_leaves_its_position_protected(server, tmp_path, prices):
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    market = Market(server.trading.exchange, prices)

    def stop_with_a_position(feed, timeout_s):
        if market.done > 20 and market.exchange.positions:
            ask(tmp_path / "live" / "NAME", "stop")
        return market.next_item(feed, timeout_s)

    result = run(server, model, tmp_path / "live", prices, SimpleNamespace(next_item=stop_with_a_position))

    assert (result.status, result.flat) == ("stopped", False)
    market.check()


SPLIT_AT = 53


class SplitMarket(Market):
    """Splits 2 for 1 before a bar; the session hears of it first, and the account has it so many bars later.

    killed: the process ends when the session has heard of it. before: the protective orders until then.
    """

    def __init__(self, exchange, prices, *, bars_late, killed):
        super().__init__(exchange, prices)
        self.splits_at, self.killed, self.told = SPLIT_AT + bars_late, killed, False
        self.before, self.after = {}, {}

    def next_item(self, feed, timeout_s):
        if self.done == SPLIT_AT and not self.told:
            self.told, self.before = True, self.prices()
            begins = self.first.astype("datetime64[ns]") + np.timedelta64(SPLIT_AT, "m")
            return CorporateAction("s-1", SYMBOL, "split", begins, 0.5, "AAPL splits 2 for 1.")
        if self.told and self.splits_at >= self.done:
            assert self.prices() == {}, "a stop at the old price closes the position at the open"
        if self.told and self.killed:
            self.killed = False
            raise Killed
        if self.told and self.splits_at == self.done:
            self.splits_at = -1
            self.exchange.split(SYMBOL, 2, 1)
            self.exchange.prices = {SYMBOL: self.opens[self.done]}
        elif self.told and self.splits_at < 0 and not self.after:
            self.after = self.prices()
        return super().next_item(feed, timeout_s)

    def check(self):
        if not self.told or (self.splits_at < 0 and self.after):
            super().check()

    def prices(self):
        """The price of each open order."""
        orders = [each for each in self.exchange.orders.values() if each.status in ("new", "held")]
        return {each.kind: float(each.stop_price or each.limit_price) for each in orders}


@pytest.mark.slow
@pytest.mark.parametrize(("bars_late", "killed"), [(0, True), (2, False)])
def test_a_split_never_finds_a_stop_at_the_old_price(server, tmp_path, *, bars_late, killed):
    """Alpaca leaves the prices and quantities of bracket and OCO orders as they are."""
    write_prices(tmp_path / "prices.csv", split_at=SPLIT_AT)
    model = deploy(tmp_path / "model", [SYMBOL], **RULES)
    market = SplitMarket(server.trading.exchange, tmp_path / "prices.csv", bars_late=bars_late, killed=killed)
    if killed:
        with pytest.raises(Killed):
            run(server, model, tmp_path / "live", tmp_path / "prices.csv", market)

    result = run(server, model, tmp_path / "live", tmp_path / "prices.csv", market)

    assert result.status == "finished", result.reason
    assert len(market.before) == len(market.after) == 2, "nothing was tested"
    assert [each["kind"] for each in events_of(result.folder, "adjustment")] == ["split"]
    (told,) = events_of(result.folder, "corporate_action")
    assert told["sentence"].endswith("Its stop and target are canceled until the account has the split.")
    exits = [each for each in events_of(result.folder, "fill") if each["exit"]]
    assert not [each for each in exits if each["bar"] == f"2024-03-04T15:{SPLIT_AT}:00"]
    if not bars_late:
        assert market.after == {kind: pytest.approx(price / 2, abs=0.02) for kind, price in market.before.items()}
    market.check()
