"""Guards in the loop: what they say is done also where nothing was decided."""

from dataclasses import replace
from typing import Any

import pytest

from ml_pipeline.live.brokers.broker import BrokerUnavailable, OrderRequest
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.decisions.deployed_policy import DeployedActing, ImpossibleAction
from ml_pipeline.live.feeds.hours import SessionTimes
from ml_pipeline.live.risk.guard import Refusal, Verdict
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.live.session_files import LEDGER_FILE
from tests.live.loop.sessions import backtest, deploy, session, trade, write_prices
from tests.live.loop.test_trading_loop import at_bar, events_of

ONE = ["A"]
N_BARS = 60


@pytest.fixture
def replay(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE, n_bars=N_BARS)
    return deploy(tmp_path / "model", ONE), tmp_path / "prices.csv"


def nan_once_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first bar on at which a position is held, the policy gives NaN."""
    act = DeployedActing.__call__

    def broken(self: DeployedActing, observation: Any) -> Any:
        if observation[-1]:
            raise ImpossibleAction("The policy gave nan, which is not finite.")
        return act(self, observation)

    monkeypatch.setattr(DeployedActing, "__call__", broken)


def test_a_policy_that_stays_nan_orders_nothing_more(tmp_path, replay, monkeypatch):
    model, prices = replay
    nan_once_held(monkeypatch)

    folder = trade(model, tmp_path / "live", prices).folder

    refused = [each for each in events_of(folder, "refusal") if each["guard"] == "impossible_action"]
    assert len(refused) > 10
    assert events_of(folder, "order")[-1]["bar"] < refused[0]["bar"]


def test_a_policy_that_stays_nan_is_closed_by_a_loss_limit(tmp_path, replay, monkeypatch):
    model, prices = replay
    nan_once_held(monkeypatch)

    result = trade(model, tmp_path / "live", prices, guard_drawdown=0.005, guard_on_loss="flatten")

    assert (result.status, result.flat, result.asked) == ("stopped", True, False)
    assert "guard_drawdown" in result.reason


def test_a_policy_that_stays_nan_is_closed_by_the_kill_file(tmp_path, replay, monkeypatch):
    model, prices = replay
    nan_once_held(monkeypatch)
    kill = at_bar(40, lambda broker: (tmp_path / "KILL").touch())
    settings = {"kill_file": tmp_path / "KILL", "on_kill_file": "flatten"}

    result = trade(model, tmp_path / "live", prices, broker_class=kill, **settings)

    assert result.status == "finished"
    assert result.flat


def test_the_end_of_a_session_closes_what_a_policy_of_nan_holds(tmp_path, replay, monkeypatch):
    model, prices = replay
    nan_once_held(monkeypatch)

    folder = trade(model, tmp_path / "live", prices, flat_at_close=True, session="23:00-23:59").folder

    assert any(order["closing"] for order in events_of(folder, "order"))


def test_orders_that_close_at_the_end_of_a_session_pass_what_holds_positions(tmp_path, monkeypatch):
    write_prices(tmp_path / "prices.csv", ONE, n_bars=N_BARS)
    model = deploy(tmp_path / "model", ONE, flat_at_close=True)
    held = Verdict((Refusal("mine", None, 1.0, 0.0, "Nothing is ordered."),), "hold")
    decisions = []

    def on_decision(self: Guards, decision: Any) -> Verdict:
        decisions.append(decision)
        return self._all(lambda guard: held if decision.closing else Verdict())

    monkeypatch.setattr(Guards, "on_decision", on_decision)

    result = trade(model, tmp_path / "live", tmp_path / "prices.csv")

    assert any(each.closing for each in decisions)
    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv")
    assert (result.folder / LEDGER_FILE).read_bytes() == expected


def test_a_loss_limit_that_holds_ends_a_session_that_closes_differences(tmp_path, replay):
    model, prices = replay
    settings = {"guard_drawdown": 0.005, "guard_on_loss": "hold", "on_difference": "flatten"}

    result = trade(model, tmp_path / "live", prices, **settings)

    assert (result.status, result.flat, result.asked) == ("stopped", False, False)


def test_an_impossible_tick_is_no_bar_and_ends_nothing(tmp_path, replay, monkeypatch):
    model, prices = replay
    trading = session(model, tmp_path / "live", prices=prices)
    sift = Guards.sift
    spoiled = []

    def spoil(self: Guards, bars: Any) -> Any:
        spoiled.append(bars)
        if len(spoiled) == 30:
            bars = replace(bars, close=-bars.close)
        return sift(self, bars)

    monkeypatch.setattr(Guards, "sift", spoil)

    result = trading.run()

    assert result.status == "finished"
    assert any("its close is -" in each["sentence"] for each in events_of(result.folder, "refusal"))


def test_what_a_guard_only_tells_is_an_alert_and_no_refusal(tmp_path, replay, monkeypatch):
    model, prices = replay
    told = Refusal("guard_features", None, 2.0, 1.0, "A feature is far outside.", warning=True)
    monkeypatch.setattr(Guards, "on_decision", lambda self, decision: Verdict((told,), "trade"))

    result = trade(model, tmp_path / "live", prices)

    assert not events_of(result.folder, "refusal")
    assert {each["sentence"] for each in events_of(result.folder, "alert")} == {"A feature is far outside."}
    assert (result.folder / LEDGER_FILE).read_bytes() == backtest(model, prices, tmp_path / "expected.csv")


def test_targets_are_told_by_another_order_where_a_guard_refuses_the_first(tmp_path, monkeypatch):
    symbols = ["A", "B"]
    write_prices(tmp_path / "prices.csv", symbols, missing=0.0)
    model = deploy(tmp_path / "model", symbols)
    sent: list[list[OrderRequest]] = []
    on_orders = Guards.on_orders

    class Watched(SimulatedBroker):
        def submit(self, orders: Any) -> Any:
            sent.append(orders)
            return super().submit(orders)

    def refusing(self: Guards, orders: Any, *rest: Any) -> Any:
        allowed, refused = on_orders(self, orders, *rest)
        kept = [order for order in allowed if order.symbol != "A"]
        return kept, [*refused, Refusal("mine", "A", 1.0, 0.0, "Not A.")]

    monkeypatch.setattr(Guards, "on_orders", refusing)

    trade(model, tmp_path / "live", tmp_path / "prices.csv", broker_class=Watched)

    assert sent
    for orders in sent:
        assert [order.symbol for order in orders] == ["B"]
        assert orders[0].targets is not None
        assert orders[0].targets[1] == orders[0].weight


def test_an_outage_while_the_market_hours_are_asked_for_loses_no_bar(tmp_path, replay, monkeypatch):
    model, prices = replay
    asked = []

    def away(self: SessionTimes, time: Any) -> None:
        asked.append(time)
        if len(asked) == 20:
            raise BrokerUnavailable("the line is dead")

    monkeypatch.setattr(SessionTimes, "__call__", away)

    folder = trade(model, tmp_path / "live", prices).folder

    assert len(events_of(folder, "broker_away")) == 1
    rows = backtest(model, prices, tmp_path / "expected.csv").splitlines()
    assert len((folder / LEDGER_FILE).read_bytes().splitlines()) == len(rows)
