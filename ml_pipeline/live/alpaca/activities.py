"""Changes of the account at Alpaca that no order caused, such as fees, deposits and splits, each reported once.

Alpaca's list has one entry per change of cash or of one symbol; a split or a change of symbol has two, the old quantity
that goes and the new one that comes. An entry that cannot be read, or whose type is unknown, is reported as a notice:
it is not booked, and if it changed the account, the comparison with the books finds that.
"""

import time
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from ml_pipeline.live.alpaca.client import RestClient, read_list, read_number, reading
from ml_pipeline.live.brokers.broker import Adjustment, AdjustmentKind, Charge, Notice

Activity = Charge | Adjustment | Notice

_CHARGES = {
    **{"FEE": "fee", "CFEE": "crypto fee", "PTC": "pass-through charge", "PTR": "pass-through rebate"},
    **{"INT": "interest", "INTNRA": "tax on interest", "INTTW": "tax on interest", "WH": "withheld tax"},
    **{"DIV": "dividend", "DIVCGL": "capital gain distribution", "DIVCGS": "capital gain distribution"},
    **{"DIVROC": "return of capital", "DIVFEE": "fee on a dividend", "CIL": "cash in lieu of fractions"},
    **dict.fromkeys(("DIVFT", "DIVNRA", "DIVTW", "DIVTXEX", "DIVWH"), "tax on a dividend"),
}
_OF_CASH = {"CSD": "deposit", "CSW": "withdrawal", "TRANS": "deposit", "JNLC": "transfer", "ACATC": "transfer"}
_OF_SHARES: dict[str, AdjustmentKind] = {
    **{"SPLIT": "split", "NC": "symbol change", "SC": "symbol change", "MA": "merger", "SPIN": "spin-off"},
    **{"REORG": "reorganization", "JNLS": "transfer", "ACATS": "transfer", "JNL": "transfer"},
}
_ASK_EVERY_S = 60.0
_OVERLAP = np.timedelta64(7, "D")
"""Alpaca books fees at the end of a day and corrects some of them days later."""
_PAGE, _MOST_PAGES = 100, 50


class AccountActivities:
    """Requests the account's activities other than fills once a minute, and when `ask_now` was called."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._asked_at = -np.inf
        self._asked_on: np.datetime64 | None = None
        self._latest: dict[str, Mapping[str, Any]] = {}

    def ask_now(self) -> None:
        """Request them at the next call of `since`."""
        self._asked_at = -np.inf

    def since(
        self, told: list[str] | None, *, asked_on: np.datetime64 | None, charges_only: bool
    ) -> tuple[list[Activity], list[str], np.datetime64 | None]:
        """The unreported activities; the IDs of all that were requested; the day of the request.

        told, asked_on: those IDs and that day at the last report, which may be long ago. told: None treats existing
        ones as reported. charges_only: `told` has no IDs of other kinds, because an older program did not report those;
        they then count as reported.
        """
        if time.monotonic() > self._asked_at + _ASK_EVERY_S:
            today = np.datetime64(time.time_ns(), "ns").astype("datetime64[D]")
            first = today if asked_on is None else min(asked_on, today)
            self._latest = {_id_of(each): each for each in self._ask(first - _OVERLAP)}
            self._asked_at, self._asked_on = time.monotonic(), today
        ids = list(self._latest)
        known = {*ids} if told is None else {*told}
        if charges_only:
            known |= {name for name, each in self._latest.items() if each.get("activity_type") not in _CHARGES}
        new = [read_activity(each) for name, each in self._latest.items() if name not in known]
        return _joined(new), ids, self._asked_on

    def _ask(self, after: np.datetime64) -> list[Mapping[str, Any]]:
        parameters = {
            "category": "non_trade_activity",
            "after": str(after),
            "direction": "asc",
            "page_size": str(_PAGE),
        }
        found: list[Mapping[str, Any]] = []
        for _ in range(_MOST_PAGES):
            page = self._rest.get("/account/activities", parameters)
            with reading("list of account activities"):
                found += read_list(page)
            if len(page) < _PAGE:
                break
            parameters = parameters | {"page_token": _id_of(page[-1])}
        return found


def read_activity(activity: Mapping[str, Any]) -> Activity:
    """Parse one of Alpaca's activities other than fills; a notice says why it cannot be booked.

    >>> fee = {"id": "7", "activity_type": "FEE", "date": "2024-03-01", "net_amount": "-0.35", "description": "TAF"}
    >>> read_activity(fee).amount, read_activity(fee).what
    (0.35, 'fee TAF')
    >>> read_activity(fee | {"net_amount": None}).sentence
    "Alpaca's activity 7 (FEE) is not booked: its net_amount is missing."
    """
    name, kind = _id_of(activity), str(activity.get("activity_type"))
    now = np.datetime64(time.time_ns(), "ns")
    try:
        if (status := activity.get("status") or "executed") != "executed":
            raise ValueError(f'its status is "{status}"')
        day = _day(activity)
        if kind in _CHARGES:
            what = (_CHARGES[kind], str(activity.get("description") or ""), str(activity.get("symbol") or ""))
            return Charge(name, -float(read_number(activity, "net_amount")), " ".join(filter(None, what)), day)
        if kind in _OF_CASH or kind in _OF_SHARES:
            return _adjustment(activity, name, kind, day)
        raise ValueError("its type is unknown")
    except ValueError as error:
        return Notice(name, f"Alpaca's activity {name} ({kind}) is not booked: {error}.", now)


def _adjustment(activity: Mapping[str, Any], name: str, kind: str, day: np.datetime64) -> Adjustment:
    what = str(activity.get("description") or "")
    if kind in _OF_CASH:
        cash = float(read_number(activity, "net_amount"))
        named: AdjustmentKind = "transfer" if _OF_CASH[kind] == "transfer" else "deposit" if cash > 0 else "withdrawal"
        return Adjustment(name, named, "", Decimal(0), cash, what, day)
    symbol = activity.get("symbol")
    if not isinstance(symbol, str) or not symbol:
        raise ValueError("its symbol is missing")
    cash = float(read_number(activity, "net_amount")) if activity.get("net_amount") is not None else 0.0
    return Adjustment(name, _OF_SHARES[kind], symbol, read_number(activity, "qty"), cash, what, day)


def _joined(activities: Iterable[Activity]) -> list[Activity]:
    """The activities, with the two entries of one split as one change."""
    found: dict[object, Activity] = {}
    for each in activities:
        if not isinstance(each, Adjustment) or each.kind != "split":
            found[id(each)] = each
            continue
        key = each.symbol, each.time
        first = found.get(key)
        if isinstance(first, Adjustment):
            name, what = f"{first.adjustment_id}+{each.adjustment_id}", first.what or each.what
            quantity, cash = first.quantity + each.quantity, first.cash + each.cash
            found[key] = each._replace(adjustment_id=name, quantity=quantity, cash=cash, what=what)
        else:
            found[key] = each
    return list(found.values())


def _id_of(activity: Mapping[str, Any]) -> str:
    """Its ID at Alpaca, or without one, its content."""
    name = activity.get("id")
    return str(name) if name else f"without ID {sorted(activity.items(), key=str)}"


def _day(activity: Mapping[str, Any]) -> np.datetime64:
    date = activity.get("date")
    try:
        return np.datetime64(str(date)[:10], "D").astype("datetime64[ns]")
    except ValueError:
        raise ValueError(f'its date is "{date}"') from None
