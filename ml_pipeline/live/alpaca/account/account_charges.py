"""Money that an Alpaca account pays or gets besides its orders: fees, interest, dividends."""

import time
from typing import Any

import numpy as np

from ml_pipeline.live.alpaca.account.order_progress import number
from ml_pipeline.live.alpaca.connection.rest_client import RestClient
from ml_pipeline.live.brokers.broker import Charge

_KINDS = ("FEE", "CFEE", "INT", "PTC", "DIV", "DIVCGL", "DIVCGS", "DIVFEE", "DIVNRA", "DIVROC", "DIVTXEX", "DIVWH")
_ASK_EVERY_S = 60.0
_LOOKED_BACK = np.timedelta64(7, "D")
"""Alpaca books fees at the end of a day, and corrects some of them days later."""
_PAGE, _MOST_PAGES = 100, 50


class AccountCharges:
    """Asks for the account's activities once a minute."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._asked_at = -np.inf
        self._latest: list[dict[str, Any]] = []

    def since(self, told: list[str] | None) -> tuple[list[Charge], list[str]]:
        """Charges of the last days that are not told, and the ids of all of them; None: what is there was before."""
        if time.monotonic() > self._asked_at + _ASK_EVERY_S:
            self._latest = self._ask()
            self._asked_at = time.monotonic()
        ids = [str(each["id"]) for each in self._latest]
        known = {*ids} if told is None else {*told}
        return [_charge(each) for each in self._latest if each["id"] not in known], ids

    def _ask(self) -> list[dict[str, Any]]:
        after = np.datetime64(time.time_ns(), "ns").astype("datetime64[D]") - _LOOKED_BACK
        parameters = {
            "activity_types": ",".join(_KINDS),
            "after": str(after),
            "direction": "asc",
            "page_size": str(_PAGE),
        }
        found: list[dict[str, Any]] = []
        for _ in range(_MOST_PAGES):
            page = self._rest.get("/account/activities", parameters)
            found += [each for each in page if each.get("net_amount") is not None]
            if len(page) < _PAGE:
                break
            parameters = parameters | {"page_token": str(page[-1]["id"])}
        return found


def _charge(activity: dict[str, Any]) -> Charge:
    what = " ".join(filter(None, (str(activity["activity_type"]), activity.get("description"), activity.get("symbol"))))
    day = np.datetime64(activity["date"][:10], "ns")
    return Charge(str(activity["id"]), -float(number(activity["net_amount"])), what, day)
