"""Ends, requests, outages and differences of a session."""

import csv
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live import connections
from ml_pipeline.live.alerting.alerts import Alerts
from ml_pipeline.live.brokers.broker import AccountState, BrokerUnavailable
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.connections import retry_until_available
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session_files import JOURNAL_FILE, LEDGER_FILE
from ml_pipeline.live.sessions import find_session, status_lines
from ml_pipeline.live.supervision.requests import ask
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from tests.live.loop.sessions import backtest, deploy, session, trade, write_prices

ONE = ["A"]


@pytest.fixture
def replay(tmp_path):
    """(model, prices) of one symbol, whose policy is always in the market or about to be."""
    write_prices(tmp_path / "prices.csv", ONE)
    return deploy(tmp_path / "model", ONE), tmp_path / "prices.csv"


def events_of(folder: Path, *kinds: str) -> list[dict]:
    events = [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]
    return [each for each in events if each["event"] in kinds]


def at_bar(number: int, do) -> type[SimulatedBroker]:
    """A broker that calls `do` once, when it is shown the bar with this number."""

    class Watched(SimulatedBroker):
        n_seen = 0

        def market_closed_bar(self, bars):
            super().market_closed_bar(bars)
            self.n_seen += 1
            if self.n_seen == number:
                do(self)

    return Watched


def stopped_after(model: Path, root: Path, prices: Path, n_bars: int, **settings) -> Path:
    """The folder of a session that was stopped after so many bars."""
    stop = at_bar(n_bars, lambda broker: trading.stop.request("Enough."))
    trading = session(model, root, prices=prices, broker_class=stop, **settings)
    return trading.run().folder


def test_a_stop_is_answered_and_the_session_goes_on_later(tmp_path, replay):
    model, prices = replay
    stop = at_bar(20, lambda broker: trading.stop.request("Enough."))
    trading = session(model, tmp_path / "live", prices=prices, broker_class=stop)

    result = trading.run()

    assert (result.status, result.reason, result.asked) == ("stopped", "Enough.", True)
    assert read_state(result.folder).status == "stopped"
    assert trade(model, tmp_path / "live", prices).status == "finished"
    expected = backtest(model, prices, tmp_path / "expected.csv").splitlines()
    assert len((result.folder / LEDGER_FILE).read_bytes().splitlines()) == len(expected)


@pytest.mark.parametrize(("what", "flat"), [("stop", False), ("flatten", True)])
def test_a_request_in_the_folder_is_done_and_taken_away(tmp_path, replay, what, flat):
    model, prices = replay
    folder = tmp_path / "live" / "NAME"

    class AskedWhenHeld(SimulatedBroker):
        def market_closed_bar(self, bars):
            super().market_closed_bar(bars)
            if any(self.account().positions.values()):
                ask(folder, what)

    result = trade(model, tmp_path / "live", prices, broker_class=AskedWhenHeld)

    assert (result.status, result.flat, result.asked) == ("stopped", flat, True)
    assert not (folder / "request").exists()
    assert events_of(folder, "stop")[-1]["flat"] is flat
    journal = Journal(folder / JOURNAL_FILE)
    assert not journal.orders(statuses=["written", "accepted", "partly_filled"])
    journal.close()


def test_an_outage_is_told_once_and_what_it_made_impossible_is_missed(tmp_path, replay):
    model, prices = replay

    folder = trade(model, tmp_path / "live", prices, sim_outage_rate=0.1, sim_outage_bars=3, sim_seed=3).folder

    away, back = events_of(folder, "broker_away"), events_of(folder, "broker_back")
    assert len(away) == len(back) > 1
    assert events_of(folder, "missed")
    rows = backtest(model, prices, tmp_path / "expected.csv").splitlines()
    assert len((folder / LEDGER_FILE).read_bytes().splitlines()) == len(rows)
    names = [each["client_order_id"] for each in events_of(folder, "order")]
    assert len(names) == len({*names})


def test_a_session_that_ends_in_an_outage_finds_the_broker_at_the_next_start(tmp_path, replay):
    """The outage ends with the bars, and a session shows the broker none before it has answered."""
    model, prices = replay
    lines = prices.read_text().splitlines(keepends=True)
    outages = {"sim_outage_rate": 0.5, "sim_outage_bars": 3, "unreachable_for": "1s"}
    for n in range(10, 31, 4):
        (tmp_path / "so_far.csv").write_text("".join(lines[:n]))
        result = trade(model, tmp_path / "live", tmp_path / "so_far.csv", **outages)
        assert result.status == "finished", result.reason
    assert len(events_of(result.folder, "broker_away")) > len(events_of(result.folder, "broker_back"))


def test_lost_answers_lose_and_double_nothing(tmp_path, replay):
    model, prices = replay

    folder = trade(model, tmp_path / "live", prices, sim_lost_answer_rate=0.5).folder

    assert (folder / LEDGER_FILE).read_bytes() == backtest(model, prices, tmp_path / "expected.csv")


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("submit", {}),
        ("poll", {}),
        ("orders", {"sim_lost_answer_rate": 0.5}),  # orders are asked for where an answer was lost,
        ("cancel", {"sim_latency_s": 400.0}),  # and canceled where they are still open at the next bar
        ("account", {}),
    ],
)
def test_a_call_that_fails_now_and_then_changes_no_ledger(tmp_path, replay, monkeypatch, name, faults):
    model, prices = replay
    calls = []
    fails_at = 3
    monkeypatch.setattr(connections, "_FIRST_BACK_OFF_S", 0.01)

    def failing(broker, *args):
        calls.append(name)
        if len(calls) % 7 == fails_at and calls.count("failed") < 4:
            calls.append("failed")
            raise BrokerUnavailable("the line is dead")
        return getattr(SimulatedBroker, name)(broker, *args)

    failing_broker = type("FailingBroker", (SimulatedBroker,), {name: failing})

    folder = trade(model, tmp_path / "live", prices, broker_class=failing_broker, **faults).folder

    assert "failed" in calls
    expected = backtest(model, prices, tmp_path / "expected.csv").splitlines()
    written = (folder / LEDGER_FILE).read_bytes().splitlines()
    assert len(written) == len(expected)
    if name == "submit":  # otherwise the next bar had come, and the one before was not decided on
        assert written == expected


def test_an_account_that_is_not_flat_is_refused_with_its_table(tmp_path, replay):
    model, prices = replay

    class Holding(SimulatedBroker):
        def account(self):
            return AccountState(5_000.0, 10_000.0, 5_000.0, {"A": 7.0, "OTHER": 0.0})

    with pytest.raises(UserError, match=r"(?s)already holds positions.*A +7.*--take-over"):
        trade(model, tmp_path / "live", prices, broker_class=Holding)


@pytest.mark.parametrize("on_difference", ["stop", "flatten", "take-over"])
def test_a_difference_at_a_start_is_acted_on_as_configured(tmp_path, replay, on_difference):
    """The account holds three of a symbol that the session does not trade and the simulated broker cannot sell."""
    model, prices = replay
    folder = stopped_after(model, tmp_path / "live", prices, 20)
    sent = []

    class WithGold(SimulatedBroker):
        def account(self):
            account = super().account()
            return account._replace(positions={**account.positions, "GOLD": 3.0})

        def submit(self, orders):
            sent.extend(orders)
            return super().submit(orders)

    result = trade(model, tmp_path / "live", prices, on_difference=on_difference, broker_class=WithGold)

    (told,) = events_of(folder, "difference")
    assert told["rows"] == [{"what": "GOLD", "books": "0", "broker": "3"}]
    ordered = {(order.quantity, order.closing) for order in sent if order.symbol == "GOLD"}
    assert ordered == ({(-3.0, True)} if on_difference == "flatten" else set())
    if on_difference == "stop":
        assert (result.status, result.asked) == ("stopped", False)
        assert "GOLD 0 in the books, 3 at the broker" in result.reason
        assert read_state(folder).reason == result.reason
    elif on_difference == "flatten":
        assert result.flat is False
        assert "Not all positions could be closed" in result.reason
    else:
        assert result.status == "finished"


def test_a_difference_at_a_start_is_closed_once_its_orders_are_filled(tmp_path, replay):
    """The account holds three A that nobody ordered; the orders that close it are filled with the next bars."""
    model, prices = replay
    stopped_after(model, tmp_path / "live", prices, 20)
    accounts = []

    class WithMore(SimulatedBroker):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            self._account.holdings[0] += 3.0

        def close(self):
            accounts.append(self.account())
            super().close()

    result = trade(model, tmp_path / "live", prices, on_difference="flatten", broker_class=WithMore)

    assert (result.status, result.flat, result.asked) == ("stopped", True, False)
    assert not any(accounts[-1].positions.values())


class _Failing:
    """Features fail at the n-th bar that is observed, and at each that is observed again."""

    def __init__(self, monkeypatch, time):
        observe = PolicyRunner._observe

        def failing(decider, bars, **settings):
            if bars.time >= np.datetime64(time):
                raise UserError("The feature mine:mood is NaN after its first value.")
            return observe(decider, bars, **settings)

        monkeypatch.setattr(PolicyRunner, "_observe", failing)


@pytest.mark.parametrize(("on_error", "flat"), [("hold", False), ("flatten", True)])
def test_a_feature_that_fails_ends_a_session_in_one_sentence(tmp_path, replay, monkeypatch, on_error, flat):
    model, prices = replay
    sentence = "The feature mine:mood is NaN after its first value."
    rows = csv.DictReader(backtest(model, prices, tmp_path / "expected.csv").decode().splitlines())
    held = [row["time"] for row in rows if float(row["position_A"])]
    _Failing(monkeypatch, held[20].replace(" ", "T"))

    result = trade(model, tmp_path / "live", prices, on_error=on_error)

    assert (result.status, result.reason, result.flat, result.asked) == ("failed", sentence, flat, False)
    assert read_state(result.folder).reason == sentence
    again = trade(model, tmp_path / "live", prices, on_error=on_error)
    assert (again.status, again.reason, again.asked) == ("failed", sentence, False)
    assert [each["why"] for each in events_of(result.folder, "stop")] == [sentence, sentence]


def test_an_account_is_taken_over_with_its_positions(tmp_path, replay):
    model, prices = replay

    class Holding(at_bar(20, lambda broker: trading.stop.request("Enough."))):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            if not self._account.holdings[0]:
                self._account._account.holdings[0], self._account._account.cash = 7.0, 5_000.0

    trading = session(model, tmp_path / "live", prices=prices, take_over=True, broker_class=Holding)
    folder = trading.run().folder

    (first, *_) = csv.DictReader((folder / LEDGER_FILE).read_text().splitlines())
    assert (float(first["position_A"]), float(first["cash"])) == (7.0, 5_000.0)
    assert session(model, tmp_path / "live", prices=prices, take_over=True).run().status == "finished"
    assert not events_of(folder, "difference")


def test_an_alert_that_does_not_arrive_is_in_the_log_alone(tmp_path, replay, monkeypatch):
    model, prices = replay
    told, lost = [], ["The alert could not be delivered: 500."]
    monkeypatch.setattr(Alerts, "take_failures", lambda self: [lost.pop()] if lost else [])
    monkeypatch.setattr(Alerts, "tell", lambda self, event, bar, values: told.append((event, values)))

    folder = trade(model, tmp_path / "live", prices).folder

    assert "The alert could not be delivered: 500." in {each["sentence"] for each in events_of(folder, "alert")}
    assert not any("could not be delivered" in str(values) for _, values in told)
    assert {"start", "stop"} <= {event for event, _ in told}


def test_what_breaks_a_session_is_told_before_it_ends(tmp_path, replay):
    model, prices = replay

    class Broken(SimulatedBroker):
        def submit(self, orders):
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        trade(model, tmp_path / "live", prices, broker_class=Broken)

    (stop,) = events_of(tmp_path / "live" / "NAME", "stop")
    assert stop["why"] == "The session failed: division by zero"


def test_waiting_for_a_broker_is_a_sign_of_life():
    answers, beats, told = [BrokerUnavailable("busy"), 7], [], []

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retry_until_available(ask, StopRequest(), told.append, beat=lambda: beats.append(1)) == 7
    assert beats
    assert len(told) == 1


def test_cash_that_is_rounded_elsewhere_is_no_difference(tmp_path, replay):
    model, prices = replay
    trade(model, tmp_path / "live", prices)

    class Rounding(SimulatedBroker):
        def account(self):
            account = super().account()
            return account._replace(cash=round(account.cash, 2))

    assert trade(model, tmp_path / "live", prices, broker_class=Rounding).status == "finished"


def test_the_status_is_one_screen(tmp_path, replay):
    model, prices = replay
    folder = trade(model, tmp_path / "live", prices).folder

    lines = "\n".join(status_lines(find_session(tmp_path / "live", None))).splitlines()

    assert folder.name in lines[0]
    assert "it has finished" in lines[0]
    assert any(line.startswith("equity") for line in lines)
    assert len(lines) <= 24
    with pytest.raises(UserError, match=r'has no session "NAM".*NAME'):
        find_session(tmp_path / "live", "NAM")


def test_ruin_ends_a_session_as_it_ends_a_backtest(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE, n_bars=250)
    model = deploy(tmp_path / "model", ONE)
    costs = {"max_gross": 20.0, "max_position": 20.0, "maintenance_margin": 0.01, "borrow_bps_per_year": 1e5}

    result = trade(model, tmp_path / "live", tmp_path / "prices.csv", **costs)

    expected = backtest(model, tmp_path / "prices.csv", tmp_path / "expected.csv", **costs)
    assert (result.folder / LEDGER_FILE).read_bytes() == expected
    assert not result.asked
    assert "closed" in result.reason


def test_a_start_by_mistake_leaves_the_session_as_it_was(tmp_path, replay):
    model, prices = replay
    folder = trade(model, tmp_path / "live", prices).folder
    before = (folder / "state.json").read_bytes()
    write_prices(tmp_path / "other.csv", ["B"])
    other = deploy(tmp_path / "other", ["B"])

    with pytest.raises(UserError, match="has symbols"):
        trade(other, tmp_path / "live", tmp_path / "other.csv")

    assert (folder / "state.json").read_bytes() == before
    assert trade(model, tmp_path / "live", prices).status == "finished"


def test_a_recording_that_is_too_short_ends_with_the_sentence_of_its_evaluation(tmp_path, replay):
    model, _ = replay
    prices = tmp_path / "short.csv"
    write_prices(prices, ONE, n_bars=4)
    with pytest.raises(UserError) as evaluated:
        backtest(model, prices, tmp_path / "expected.csv")

    result = trade(model, tmp_path / "live", prices)

    assert (result.status, result.reason) == ("finished", f"The bars have ended. {evaluated.value}")


def test_a_session_goes_on_from_another_folder(tmp_path, replay, monkeypatch):
    model, prices = replay
    monkeypatch.chdir(tmp_path)
    folder = trade(Path("model"), tmp_path / "live", prices).folder
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        assert [each.path for each in journal.models()] == [str(model / "best.pt")]
