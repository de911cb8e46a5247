"""Faults of the simulated broker: their rates, as settings, and the orders and bars that they hit.

Whether a fault occurs depends only on a seed and a name, not on when it is drawn."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml_pipeline.config.checks import check_choice, check_count, check_non_negative, check_within

RestOfOrder = Literal["open", "canceled"]


@dataclass(frozen=True)
class SimulatedFaults:
    """Faults of the simulated broker.

    `sim_seed` and the order's ID or the bar's time determine which orders and bars are hit, so a restarted session
    meets the same faults. Raises UserError if a value is out of range.
    """

    sim_latency_s: float = 0.0
    """Seconds from the close of the decision to the arrival of its orders in the market; an order that arrives within
    a bar is filled at a price interpolated from the bar's open to its close."""
    sim_latency_jitter_s: float = 0.0
    """Largest additional latency in seconds, drawn for each order."""
    sim_partial_fill_rate: float = 0.0
    """Fraction of orders, from 0 to 1, that are only partly filled in the bar of their arrival."""
    sim_rest_of_order: RestOfOrder = "canceled"
    """What happens to the rest of a partly filled order: canceled, or open for the next bar."""
    sim_reject_rate: float = 0.0
    """Fraction of orders, from 0 to 1, that the broker rejects, for lack of buying power or because the symbol cannot
    be traded now."""
    sim_lost_answer_rate: float = 0.0
    """Fraction of submissions, from 0 to 1, that the broker accepts but whose answer is lost."""
    sim_outage_rate: float = 0.0
    """Probability, from 0 to 1, that an outage begins at a bar; the market stays open during it."""
    sim_outage_bars: int = 1
    """Length of an outage in bars."""
    sim_seed: int = 0
    """Seed of the faults."""

    def __post_init__(self) -> None:
        for name in ("sim_latency_s", "sim_latency_jitter_s"):
            check_non_negative(name, getattr(self, name))
        for name in ("sim_partial_fill_rate", "sim_reject_rate", "sim_lost_answer_rate", "sim_outage_rate"):
            check_within(name, getattr(self, name), 0, 1)
        check_choice("sim_rest_of_order", self.sim_rest_of_order, ("open", "canceled"))
        check_count("sim_outage_bars", self.sim_outage_bars)
        check_count("sim_seed", self.sim_seed, minimum=0)


_REASONS = ("insufficient buying power", "{symbol} cannot be traded now")
# A partly filled order is filled to at least this fraction, and at most 1 minus this fraction.
_LEAST_PART = 0.1


class Chance:
    """The faults of each order and bar."""

    def __init__(self, faults: SimulatedFaults) -> None:
        self._faults = faults

    def latency(self, order_id: str) -> np.timedelta64:
        """How long an order takes to arrive."""
        faults = self._faults
        seconds = faults.sim_latency_s
        if faults.sim_latency_jitter_s:
            seconds += faults.sim_latency_jitter_s * self._drawn("latency", order_id)
        return np.timedelta64(round(seconds * 1e9), "ns")

    def part_filled(self, order_id: str) -> float:
        """Fraction of the order that is filled in its first bar; usually 1."""
        if not self._meets(self._faults.sim_partial_fill_rate, "partial", order_id):
            return 1.0
        return _LEAST_PART + (1.0 - 2.0 * _LEAST_PART) * self._drawn("part", order_id)

    def rejection(self, order_id: str, symbol: str) -> str | None:
        """Why the broker rejects the order; None if it takes it."""
        if not self._meets(self._faults.sim_reject_rate, "reject", order_id):
            return None
        return _REASONS[int(self._drawn("reason", order_id) * len(_REASONS))].format(symbol=symbol)

    def loses_answer(self, order_id: str) -> bool:
        """Whether the answer to a submission is lost. order_id: of its first order."""
        return self._meets(self._faults.sim_lost_answer_rate, "answer", order_id)

    def outage_begins(self, time: np.datetime64) -> bool:
        """Whether an outage begins at the bar of this time."""
        return self._meets(self._faults.sim_outage_rate, "outage", str(time.astype("datetime64[ns]")))

    def _meets(self, rate: float, what: str, name: str) -> bool:
        return rate > 0.0 and self._drawn(what, name) < rate

    def _drawn(self, what: str, name: str) -> float:
        """A number in [0, 1) that depends on the arguments and the seed only."""
        digest = hashlib.blake2b(repr((self._faults.sim_seed, what, name)).encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48
