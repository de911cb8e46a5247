"""Trading sessions as their files tell, whatever state these are in."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.dashboard.curves.equity_tail import EquityTail
from ml_pipeline.dashboard.sessions import NotThere, SessionReader
from ml_pipeline.runtime.files import open_regular
from tests.dashboard.session_folders import make_session, status_values

DECISION = {
    "bar": "2024-03-01T14:35:00",
    "model": "eurusd v3",
    "action": [1, 0],
    "weights": {"EURUSD": 0.5, "GBPUSD": 0.0},
    "features": {"EURUSD:rsi_14": [55.0, 0.4], "EURUSD:atr_14": [0.2, 4.9]},
    "out_of_range": [["EURUSD:atr_14", 0.2, 0.001, 0.05]],
}


def only(root):
    (found,) = SessionReader(root).read()
    return found


def test_a_session_is_told_in_full(tmp_path):
    make_session(tmp_path, "eurusd")
    found = only(tmp_path)
    assert (found.name, found.status, found.model, found.version, found.bars, found.fills) == (
        *("eurusd", "running", "eurusd", "v3"),
        *(3, 7),
    )
    assert found.simple_return == pytest.approx(0.025)
    assert (found.positions["EURUSD"], found.refusals, found.latency_ms["p99"]) == (5750.5, {"order size": 2}, 11.0)
    assert found.retrain == "2 promoted"
    assert json.dumps(found.as_json(), allow_nan=False)


def test_a_session_without_a_sign_of_life_was_stopped(tmp_path):
    folder = make_session(tmp_path, "eurusd")
    (folder / "heartbeat").touch()
    for name in ("live.json", "state.json", "heartbeat"):
        os.utime(folder / name, (time.time() - 600, time.time() - 600))
    assert only(tmp_path).status == "stopped"
    assert "no sign of life for 10 minutes" in only(tmp_path).reason
    (folder / "heartbeat").touch()
    assert only(tmp_path).status == "running"  # it waits for a bar


@pytest.mark.parametrize("file", ["live.json", "state.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_broken_session_is_told_and_the_others_are_seen(tmp_path, content, file):
    make_session(tmp_path, "whole")
    (make_session(tmp_path, "broken") / file).write_text(content)
    found = {each.name: each for each in SessionReader(tmp_path).read()}
    assert found["whole"].status == "running"
    assert found["broken"].status == "broken"
    assert file in found["broken"].reason


def test_values_of_a_wrong_kind_are_not_shown(tmp_path):
    odd = {name: [{"a": 1}, "x"] for name in status_values() if name != "name"}
    make_session(tmp_path, "odd", **odd)
    found = only(tmp_path)
    assert (found.status, found.equity, found.symbols, dict(found.positions)) == ("running", None, ("x",), {})
    assert json.dumps(found.as_json(), allow_nan=False)


START = {
    "version": None,
    "real_money": False,
    "symbols": ["EURUSD", "GOLD"],
    "settings": {"fee_bps": 1.0, "guards": []},
}


def test_details_hold_equity_decision_and_events(tmp_path):
    events = [
        {"event": "start", "at": "2024-03-01T08:00:00+00:00", "bar": None, "model": "eurusd", **START},
        {"event": "decision", "at": "2024-03-01T14:35:00+00:00", "bar": "2024-03-01T14:35:00"},
        {"event": "refusal", "at": "x", "bar": "2024-03-01T14:35:00", "sentence": "Too large."},
    ]
    make_session(tmp_path, "eurusd", events=events, decision=DECISION)
    found = SessionReader(tmp_path).details("eurusd")
    assert found["equity"][1] == [10_000.0, 10_100.0, 10_250.0]
    assert np.diff(found["equity"][0]).tolist() == [60.0, 60.0]
    assert found["decision"]["features"][0] == ["EURUSD:atr_14", 0.2, 4.9, [0.001, 0.05]]
    assert [(each["event"], each["text"]) for each in found["events"]] == [
        ("refusal", "Too large."),
        ("start", "model eurusd, symbols EURUSD GOLD, settings fee_bps 1"),
    ]
    assert json.dumps(found, allow_nan=False)


def test_an_event_without_a_sentence_shows_the_values_that_say_something(tmp_path):
    order = {"event": "alert", "symbol": "EURUSD", "quantity": 8475.941041354115, "weight": 0.0}
    order |= {"limit_price": None, "closing": False, "reason": "", "targets": ["A", "B"], "settings": {"speed": 60.0}}
    make_session(tmp_path, "eurusd", events=[order])
    (event,) = SessionReader(tmp_path).details("eurusd")["events"]
    assert event["text"] == "symbol EURUSD, quantity 8475.94, weight 0, targets A B, settings speed 60"


def test_a_session_that_has_only_begun_has_no_details(tmp_path):
    folder = make_session(tmp_path, "new", ledger=())
    for name in ("ledger.csv", "live.jsonl", "live.json"):
        (folder / name).unlink()
    assert (only(tmp_path).status, only(tmp_path).equity) == ("running", None)
    assert SessionReader(tmp_path).details("new") == {
        "equity": [[], [], []],
        "holdings": [],
        "orders": [],
        "decision": None,
        "events": [],
    }


def an_order(which, event, **more):
    return {"event": event, "client_order_id": which, "symbol": "GOLD", "bar": "2024-03-01T14:35:00", "at": "x", **more}


def test_the_life_of_an_order_is_one_row(tmp_path):
    events = [
        an_order("a", "order", quantity=10.0, limit_price=None),
        an_order("a", "update", status="accepted", reason=""),
        an_order("b", "order", quantity=-4.0, limit_price=2.5),
        an_order("a", "fill", quantity=6.0, price=2.0, costs=0.1),
        an_order("a", "fill", quantity=3.0, price=2.3, costs=0.05),
        an_order("a", "update", status="canceled", reason="the bar ended"),
        an_order("b", "update", status="rejected", reason="too little cash"),
        an_order("c", "fill", quantity=1.0, price=5.0, costs=0.0),  # its beginning is in an earlier part of the log
        {"event": "refusal", "sentence": "Too large."},
    ]
    make_session(tmp_path, "eurusd", events=events)
    found = SessionReader(tmp_path).details("eurusd")
    c, b, a = found["orders"]
    # (6 * 2.0 + 3 * 2.3) / 9 = 2.1
    assert (a["ordered"], a["filled"], a["status"], a["reason"]) == (10.0, 9.0, "canceled", "the bar ended")
    assert (a["price"], a["costs"]) == (pytest.approx(2.1), pytest.approx(0.15))
    assert a["steps"] == ["sent", "accepted", "canceled"]
    assert (b["ordered"], b["filled"], b["limit"], b["status"]) == (-4.0, None, 2.5, "rejected")
    assert (c["ordered"], c["filled"], c["status"]) == (None, 1.0, None)
    assert [each["event"] for each in found["events"]] == ["refusal"]


OF_EACH = ("close", "position", "filled", "fill_price")
HEAD = ",".join(["time,equity,cash,costs_paid", *(f"{kind}_{symbol}" for symbol in "AB" for kind in OF_EACH)])
HOLDINGS = f"""{HEAD}
2024-03-01T00:00:00,1000.0,1000.0,0.0,10.0,0.0,0.0,10.0,4.0,0.0,0.0,4.0
2024-03-01T00:01:00,1000.0,0.0,0.0,11.0,20.0,20.0,10.0,4.0,-50.0,-50.0,5.0
2024-03-01T00:02:00,1000.0,0.0,0.0,12.0,30.0,10.0,13.0,2.0,-30.0,20.0,3.0
2024-03-01T00:03:00,1000.0,0.0,0.0,15.0,20.0,-10.0,14.0,3.0,10.0,40.0,2.5
"""


def test_holdings_have_a_value_and_a_profit(tmp_path):
    make_session(tmp_path, "eurusd", ledger_text=HOLDINGS)
    found = SessionReader(tmp_path).details("eurusd")
    # A: 20 at 10 and 10 at 13 cost 11 each; 20 are left. B: short, then turned around to 10 at 2.5.
    assert found["holdings"] == [
        {"symbol": "A", "quantity": 20.0, "price": 15.0, "value": 300.0, "profit": 80.0},
        {"symbol": "B", "quantity": 10.0, "price": 3.0, "value": 30.0, "profit": 5.0},
    ]
    # Half in each: 500 * close / 10 + 500 * close / 4.
    assert found["equity"][2] == [1000.0, 1050.0, 850.0, 1125.0]


def test_what_a_holding_cost_is_not_guessed(tmp_path):
    taken_over = "2024-03-01T00:00:00,1000.0,0.0,0.0,10.0,20.0,0.0,10.0,4.0,0.0,0.0,4.0"
    make_session(tmp_path, "eurusd", ledger_text=f"{HEAD}\n{taken_over}\n")
    (held,) = SessionReader(tmp_path).details("eurusd")["holdings"]
    assert (held["value"], held["profit"]) == (200.0, None)


@pytest.mark.parametrize("name", ["other", "../secret", ".hidden", "", "a/b", "linked"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    make_session(tmp_path, "secret")
    make_session(tmp_path / "live", "eurusd")
    make_session(tmp_path / "live", ".hidden")
    (tmp_path / "live" / "linked").symlink_to(tmp_path / "secret")
    with pytest.raises(NotThere, match="has no session"):
        SessionReader(tmp_path / "live").folder(name)
    assert [each.name for each in SessionReader(tmp_path / "live").read()] == ["eurusd"]


def test_the_equity_grows_with_the_ledger(tmp_path):
    path = tmp_path / "ledger.csv"
    tail = EquityTail(path)
    assert len(tail.read()[0]) == 0
    lines = ["time,equity,cash", *(f"2024-03-01T00:{i:02}:00.000000000,{100 + i},1.0" for i in range(20))]
    data = ("\n".join(lines) + "\n").encode()
    for end in range(7, len(data) + 1, 7):  # torn anywhere
        path.write_bytes(data[:end])
        times, equity = tail.read()
        whole = max(data[:end].count(b"\n") - 1, 0)
        assert len(times) == whole
        assert equity.tolist() == [100.0 + i for i in range(whole)]
    path.write_bytes(data)
    assert len(tail.read()[0]) == 20
    path.write_bytes(b"\n".join(data.split(b"\n")[:4]) + b"\n")  # begun anew, shorter
    assert tail.read()[1].tolist() == [100.0, 101.0, 102.0]


def test_a_long_ledger_is_thinned(tmp_path):
    rng = np.random.default_rng(0)
    times = np.datetime64("2024-01-01", "ns") + np.arange(50_000) * np.timedelta64(60, "s")
    equity = np.exp(np.cumsum(rng.normal(0, 1e-3, len(times))))
    folder = make_session(tmp_path, "long", ledger=())
    rows = "".join(f"{time},{value!r},0.0\n" for time, value in zip(times, equity.tolist(), strict=True))
    (folder / "ledger.csv").write_text("time,equity,cash\n" + rows)
    seconds, shown, _ = SessionReader(tmp_path).details("long")["equity"]
    assert len(seconds) < 2000
    assert (min(shown), max(shown)) == (equity.min(), equity.max())


def test_a_folder_that_may_not_be_looked_into_is_one_line_and_the_others_are_shown(tmp_path, monkeypatch):
    make_session(tmp_path, "eurusd")
    make_session(tmp_path, "locked")
    (tmp_path / "self").symlink_to("self")
    real = Path.stat

    def looked_at(path, **options):  # no permission keeps root out, who may run the tests
        if path.parent.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", looked_at)
    monkeypatch.setattr("ml_pipeline.runs.state.open_regular", _no_permission_below("locked"))
    found = SessionReader(tmp_path).read()
    assert {each.name: each.status for each in found} == {"eurusd": "running", "locked": "broken"}


def _no_permission_below(name):
    def opened(path, **options):
        if path.parent.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_regular(path, **options)

    return opened
