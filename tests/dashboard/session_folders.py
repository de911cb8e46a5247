"""Folders of trading sessions as sessions leave them, without trading."""

import json
from datetime import UTC, datetime

from ml_pipeline.runtime.process_identity import this_process


def status_values(**more):
    """What live.json holds of a session in the middle."""
    return {
        "name": "eurusd",
        "model": "eurusd",
        "version": "v3",
        "broker": "simulated",
        "real_money": False,
        "symbols": ["EURUSD", "GBPUSD"],
        "bar": "2024-03-01T14:35:00",
        "updated": datetime.now(UTC).isoformat(),
        "equity": 10_250.0,
        "start_equity": 10_000.0,
        "cash": 4_000.0,
        "positions": {"EURUSD": 5_750.5, "GBPUSD": 0.0},
        "open_orders": 1,
        "refusals": {"order size": 2},
        "latency_ms": {"median": 4.2, "p99": 11.0},
        "bars": 3,
        "fills": 7,
        "last_sentence": None,
        "retrain": {
            "state": "promoted",
            "number": 2,
            "due": "2024-03-01T00:00:00",
            "sentence": "Better.",
            "version": "v4",
        },
        "pid": 4711,
        **more,
    }


def make_session(
    root,
    name,
    *,
    ledger=(10_000.0, 10_100.0, 10_250.0),
    ledger_text=None,
    events=(),
    decision=None,
    state="running",
    **status,
):
    """The folder of a session with so many bars of equity."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "journal.sqlite").touch()
    writer = this_process()._asdict()
    (folder / "state.json").write_text(json.dumps({"status": state, "began": "2024-03-01T08:00:00+00:00", **writer}))
    (folder / "live.json").write_text(json.dumps(status_values(name=name, **status)))
    rows = [f"2024-03-01T14:{i:02}:00.000000000,{value},4000.0,0.0" for i, value in enumerate(ledger)]
    text = "\n".join(["time,equity,cash,costs_paid", *rows]) + "\n"
    (folder / "ledger.csv").write_text(text if ledger_text is None else ledger_text)
    (folder / "live.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if decision is not None:
        (folder / "decision.json").write_text(json.dumps(decision))
    return folder
