"""live.jsonl: the events of a session, one JSON object per line.

Every event has `event`, `at` (UTC, by this machine's clock) and `bar` (the time of its bar, or null).
The lines are also in the journal, so that an incomplete file can be repaired.

start: model, version, broker, symbols, settings
decision: equity, cash, positions, weights, action, targets, latency_ms, model
order: client_order_id, symbol, quantity, weight, limit_price
update: client_order_id, symbol, status, filled_quantity, reason
fill: client_order_id, symbol, quantity, price, costs, exit, decided_close, delay_s
charge: amount, what, days
corporate_action: symbol, kind, begins, factor, what, sentence
adjustment: kind, symbol, quantity, cash, what, sentence
difference: rows (what, books, broker), sentence
protection: client_order_id, symbol, quantity, stop_price, target_price, status, reason
refusal: guard, symbol, value, limit, sentence
gap, correction, late, missed, alert, broker_away, broker_back: sentence, and fields of the event
model: from, to, why. retrain: state and figures. stop: why, flat
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

Event = Literal[
    "start",
    "decision",
    "order",
    "update",
    "fill",
    "charge",
    "adjustment",
    "corporate_action",
    "refusal",
    "gap",
    "correction",
    "late",
    "missed",
    "alert",
    "model",
    "retrain",
    "difference",
    "protection",
    "broker_away",
    "broker_back",
    "stop",
]
EVENTS: tuple[str, ...] = get_args(Event)


def event_line(event: Event, bar: np.datetime64 | None, values: Mapping[str, Any]) -> str:
    """The line of an event that happens now, without a line end.

    >>> line = event_line("late", np.datetime64("2024-03-01T09:30"), {"equity": float("nan")})
    >>> {name: value for name, value in json.loads(line).items() if name != "at"}
    {'event': 'late', 'bar': '2024-03-01T09:30:00', 'equity': None}
    """
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    head = {"event": event, "at": at, "bar": None if bar is None else time_text(bar)}
    return json.dumps({**head, **plain(values)}, ensure_ascii=False, allow_nan=False)


def time_text(time: np.datetime64) -> str:
    """A time as text for JSON: to the second, or finer if it has a fraction.

    >>> time_text(np.datetime64("2024-03-01T09:30:00.250"))
    '2024-03-01T09:30:00.250'
    """
    seconds = time.astype("datetime64[s]")
    if seconds == time:
        return str(seconds)
    text = str(time)
    return text.rstrip("0") if len(text.partition(".")[2]) > 3 else text  # milliseconds stay


def plain(value: Any) -> Any:
    """Values for JSON: lists for arrays, text for times, null for numbers that are not finite."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.datetime64):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return _plain_value(value)


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return time_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    return str(value) if isinstance(value, Path) else value
