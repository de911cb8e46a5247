"""How far the caller knows what happened: a text that it keeps, and that a later process goes on from."""

import json
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.account.order_progress import Told

_VERSION = 1


@dataclass
class ToldRequest:
    """An order of the loop that has not ended. legs: by the id that Alpaca knows each by."""

    legs: dict[str, Told] = field(default_factory=dict)
    status: str = ""
    filled: Decimal = Decimal(0)


@dataclass
class EventCursor:
    """requests: by client order id, of the orders that have not ended. charges: ids of the latest that were told; None:
    none was asked for yet. run, number: every other order that the process `run` had sent up to its `number`-th has
    ended, and is told. after: UTC; what the account got later, `run` had sent without telling of it.
    """

    run: str = ""
    number: int = 0
    after: np.datetime64 | None = None
    requests: dict[str, ToldRequest] = field(default_factory=dict)
    charges: list[str] | None = None

    def dump(self) -> str:
        """As a text: the same bits for the same state."""
        requests = {
            name: {
                "legs": {leg: [str(told.filled), str(told.value)] for leg, told in request.legs.items()},
                "status": request.status,
                "filled": str(request.filled),
            }
            for name, request in self.requests.items()
        }
        content = {
            "version": _VERSION,
            "run": self.run,
            "number": self.number,
            "after": None if self.after is None else str(self.after),
            "requests": requests,
            "charges": self.charges,
        }
        return json.dumps(content, separators=(",", ":"))


def read_cursor(text: str | None) -> EventCursor:
    """What `dump` wrote. Raises UserError for anything else, such as another broker's cursor."""
    if text is None:
        return EventCursor()
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError
        requests = {
            name: ToldRequest(
                {leg: Told(Decimal(filled), Decimal(value)) for leg, (filled, value) in each["legs"].items()},
                each["status"],
                Decimal(each["filled"]),
            )
            for name, each in content["requests"].items()
        }
        after = None if content["after"] is None else np.datetime64(content["after"], "ns")
        return EventCursor(content["run"], int(content["number"]), after, requests, content["charges"])
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError):
        raise UserError(
            "The session's books were not kept with Alpaca: what they say of its last events cannot be read; go on "
            "with the broker that the session began with."
        ) from None
