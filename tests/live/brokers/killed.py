"""Trades a small market and is killed before one SQL statement after the other; prints how each account ended.

A program of its own, since it forks: `python -m tests.live.brokers.killed FOLDER FIRST LAST`. Prints one JSON
line: the account that was never killed, the differing ones, and how many children were killed.
"""

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.brokers.faults import SimulatedFaults
from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.bar_set import BarSet

SYMBOLS = ("ABC", "XYZ")
N_BARS = 6
MINUTE = np.timedelta64(1, "m")
START = np.datetime64("2024-03-01T09:30", "ns")
RULES = TradingRules("target_weights", fee_bps=5, borrow_bps_per_year=50_000, stop_loss=0.02)
FAULTS = SimulatedFaults(sim_partial_fill_rate=0.5, sim_reject_rate=0.2, sim_seed=3)
GENERATOR = np.random.default_rng(5)
CLOSES = 100 * np.exp(GENERATOR.normal(0, 0.01, (N_BARS, 2)).cumsum(axis=0))
WEIGHTS = GENERATOR.normal(0, 0.6, (N_BARS, 2))


def bars(t: int) -> BarSet:
    close = CLOSES[t]
    return BarSet(
        time=START + t * MINUTE,
        closed_at=START + (t + 1) * MINUTE,
        open=close * 1.001,
        high=close * 1.02,
        low=close * 0.98,
        close=close,
        volume=np.ones(2),
        fillable=np.ones(2, dtype=bool),
    )


def trade(store: Path, *, killed_at: int | None = None) -> str:
    """Go through all bars from the first, as whoever does not know where it was stopped; how the account ends."""
    settings = {"periods_per_year": 1e5, "faults": FAULTS, "durable": False}
    with closing(SimulatedBroker(SYMBOLS, RULES, store=store, **settings)) as broker:
        if killed_at is not None:
            kill_before(broker, killed_at)
        for t in range(N_BARS):
            done = broker.orders([f"{t}-ABC"])
            broker.market_closed_bar(bars(t))
            if not done:
                broker.cancel([update.client_order_id for update in broker.orders()])
            orders = [OrderRequest(f"{t}-{name}", name, 0.0, float(WEIGHTS[t, i])) for i, name in enumerate(SYMBOLS)]
            broker.submit(orders)
        events, cursor = broker.poll(None)
        names = [f"{t}-{name}" for t in range(N_BARS) for name in SYMBOLS]
        return repr((broker.account(), events, cursor, broker.orders(names)))


def kill_before(broker: SimulatedBroker, statement: int) -> None:
    """Kill this process before it executes the statement of this number."""
    left = [statement]

    def count(sql: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    broker._store.connection.set_trace_callback(count)


def main(folder: Path, first: int, step: int) -> None:
    expected = trade(folder / "never.sqlite")
    n_killed, differing = 0, []
    for statement in range(first, 10_000, step):
        store = folder / f"{statement}.sqlite"
        child = os.fork()
        if child == 0:
            try:
                trade(store, killed_at=statement)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        n_killed += 1
        if trade(store) != expected:
            differing.append(statement)
    print(json.dumps({"killed": n_killed, "differing": differing, "account": expected[:200]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
