"""Splits, dividends and other corporate actions, requested from Alpaca as a day begins and before the exchange opens.

Source: https://docs.alpaca.markets/reference/corporateactions-1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from ml_pipeline.live.alpaca.client import reading
from ml_pipeline.live.brokers.broker import UnreadableAnswer
from ml_pipeline.live.feeds.feed import BarsUnavailable, CorporateAction

_EXCHANGE = ZoneInfo("America/New_York")
_BEFORE_OPENING = time(8, 30)
_AGAIN_AFTER = np.timedelta64(60, "s")
_SYMBOLS = ("symbol", "old_symbol", "acquiree_symbol", "source_symbol")
_DAYS = ("ex_date", "effective_date", "process_date")

Request = Callable[[date, date], list[CorporateAction]]


class ActionsOfTheDay:
    """Each corporate action once. request: those from the first to the last day; it may raise BarsUnavailable."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._asked: tuple[date, bool] | None = None
        self._again_at: np.datetime64 | None = None
        self._told: set[str] = set()

    def since(self, begins: np.datetime64, now: np.datetime64) -> list[CorporateAction]:
        """Those from the day of `begins` to today that were not returned before; requested twice a day.

        If Alpaca does not answer, one action of the kind "unknown" says so, and later calls request them again.
        """
        local = _at_exchange(now)
        due = (local.date(), local.time() >= _BEFORE_OPENING)
        if due == self._asked or (self._again_at is not None and now < self._again_at):
            return []
        first = _at_exchange(begins).date() if self._asked is None else self._asked[0]
        try:
            found = self._request(min(first, due[0]), due[0])
            self._asked, self._again_at = due, None
        except BarsUnavailable as error:
            self._again_at = now + _AGAIN_AFTER
            what = f"The corporate actions of {due[0]} are not known: {error}"
            found = [CorporateAction(f"unknown {due[0]}", "", "unknown", begin_of(due[0]), 1.0, what)]
        new = [each for each in found if each.action_id not in self._told]
        self._told |= {each.action_id for each in new}
        return new


def actions_of(answer: object, symbols: Sequence[str]) -> Iterator[CorporateAction]:
    """Parse the lists of one answer, by kind; what cannot be read is of the kind "unknown" and says so."""
    if not isinstance(answer, Mapping):
        return
    for kind, actions in answer.items():
        for each in actions if isinstance(actions, list) else ():
            named = each.get("id") if isinstance(each, Mapping) else each
            try:
                with reading(f"corporate action {named} ({kind})"):
                    action = _action(str(kind).removesuffix("s").replace("_", " "), each)
            except UnreadableAnswer as error:
                moment = np.datetime64(datetime.now(UTC).replace(tzinfo=None), "ns")
                action = CorporateAction(f"unknown {named}", "", "unknown", moment, 1.0, str(error))
            if action.kind == "unknown" or action.symbol in symbols:
                yield action


def _action(kind: str, answer: Mapping[str, Any]) -> CorporateAction:
    symbol, day = _first(answer, _SYMBOLS), date.fromisoformat(_first(answer, _DAYS))
    factor, what = 1.0, f"{symbol}: {kind}"
    if kind in ("forward split", "reverse split"):
        old, new = float(answer["old_rate"]), float(answer["new_rate"])
        kind, factor, what = "split", old / new, f"{symbol} splits {new:g} for {old:g}"
        if not (np.isfinite(factor) and factor > 0.0):
            raise ValueError(f"rates {old:g} and {new:g}")
    elif kind == "cash dividend":
        what = f"{symbol} pays a dividend of {float(answer['rate']):g} per share"
    elif kind == "name change":
        kind, what = "symbol change", f"{symbol} becomes {answer['new_symbol']}"
    name = str(answer.get("id") or f"{kind} {symbol} {day}")
    return CorporateAction(name, symbol, kind, begin_of(day), factor, f"{what} on {day}.")


def _first(answer: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these texts that an answer has. Raises KeyError."""
    found = [str(answer[name]) for name in names if answer.get(name)]
    if not found:
        raise KeyError(names[0])
    return found[0]


def begin_of(day: date) -> np.datetime64:
    """When this day of the exchange begins, in UTC."""
    local = datetime.combine(day, time(), _EXCHANGE)
    return np.datetime64(local.astimezone(UTC).replace(tzinfo=None), "ns")


def _at_exchange(moment: np.datetime64) -> datetime:
    seconds = int(moment.astype("datetime64[s]").astype(np.int64))
    return datetime.fromtimestamp(seconds, UTC).astimezone(_EXCHANGE)
