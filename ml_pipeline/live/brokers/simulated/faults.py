"""What may go wrong at the simulated broker, and how often: settings alone; all are off unless asked for."""

from dataclasses import dataclass
from typing import Literal

from ml_pipeline.config.checks import check_choice, check_count, check_non_negative, check_within

RestOfOrder = Literal["open", "canceled"]


@dataclass(frozen=True)
class SimulatedFaults:
    """Faults of the simulated broker.

    Which order or bar they meet follows from `sim_seed` and from the order's id or the bar's time, so that a session
    that is started again meets the same ones. Raises UserError if a value is out of range.
    """

    sim_latency_s: float = 0.0
    """Seconds from the close that an order is decided on to its arrival in the market; an order that arrives within a
    bar is filled at a price on the straight line from the bar's open to its close."""
    sim_latency_jitter_s: float = 0.0
    """Largest number of seconds that come on top of sim_latency_s, drawn for each order."""
    sim_partial_fill_rate: float = 0.0
    """Part of all orders, from 0 to 1, that are filled only in part in the bar that they arrive in."""
    sim_rest_of_order: RestOfOrder = "canceled"
    """What becomes of the rest of an order that was filled in part: canceled, or open for the next bar."""
    sim_reject_rate: float = 0.0
    """Part of all orders, from 0 to 1, that the broker rejects, for lack of buying power or because the symbol cannot
    be traded now."""
    sim_lost_answer_rate: float = 0.0
    """Part of all times that orders are sent, from 0 to 1, in which the broker takes them but its answer is lost."""
    sim_outage_rate: float = 0.0
    """Chance that the broker cannot be reached from a bar on, from 0 to 1; the market goes on meanwhile."""
    sim_outage_bars: int = 1
    """Number of bars that an outage lasts."""
    sim_seed: int = 0
    """Seed of these faults."""

    def __post_init__(self) -> None:
        for name in ("sim_latency_s", "sim_latency_jitter_s"):
            check_non_negative(name, getattr(self, name))
        for name in ("sim_partial_fill_rate", "sim_reject_rate", "sim_lost_answer_rate", "sim_outage_rate"):
            check_within(name, getattr(self, name), 0, 1)
        check_choice("sim_rest_of_order", self.sim_rest_of_order, ("open", "canceled"))
        check_count("sim_outage_bars", self.sim_outage_bars)
        check_count("sim_seed", self.sim_seed, minimum=0)
