"""Which orders and bars meet a fault: numbers that follow from a seed and a name alone, whenever they are drawn."""

import hashlib

import numpy as np

from ml_pipeline.live.brokers.simulated.faults import SimulatedFaults

_REASONS = ("insufficient buying power", "{symbol} cannot be traded now")
# An order that is filled in part is filled to at least this part and at most 1 less this part.
_LEAST_PART = 0.1


class Chance:
    """The faults of each order and bar."""

    def __init__(self, faults: SimulatedFaults) -> None:
        self._faults = faults

    def latency(self, order_id: str) -> np.timedelta64:
        """How long an order is on its way."""
        faults = self._faults
        seconds = faults.sim_latency_s
        if faults.sim_latency_jitter_s:
            seconds += faults.sim_latency_jitter_s * self._drawn("latency", order_id)
        return np.timedelta64(round(seconds * 1e9), "ns")

    def part_filled(self, order_id: str) -> float:
        """The part of the order that is filled in its first bar; mostly 1."""
        if not self._meets(self._faults.sim_partial_fill_rate, "partial", order_id):
            return 1.0
        return _LEAST_PART + (1.0 - 2.0 * _LEAST_PART) * self._drawn("part", order_id)

    def rejection(self, order_id: str, symbol: str) -> str | None:
        """Why the broker rejects the order; None if it takes it."""
        if not self._meets(self._faults.sim_reject_rate, "reject", order_id):
            return None
        return _REASONS[int(self._drawn("reason", order_id) * len(_REASONS))].format(symbol=symbol)

    def loses_answer(self, order_id: str) -> bool:
        """Whether the answer to orders of which this is the first is lost."""
        return self._meets(self._faults.sim_lost_answer_rate, "answer", order_id)

    def outage_begins(self, time: np.datetime64) -> bool:
        """Whether the broker cannot be reached from the bar of this time on."""
        return self._meets(self._faults.sim_outage_rate, "outage", str(time.astype("datetime64[ns]")))

    def _meets(self, rate: float, what: str, name: str) -> bool:
        return rate > 0.0 and self._drawn(what, name) < rate

    def _drawn(self, what: str, name: str) -> float:
        """A number of 0 to below 1."""
        digest = hashlib.blake2b(repr((self._faults.sim_seed, what, name)).encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48
