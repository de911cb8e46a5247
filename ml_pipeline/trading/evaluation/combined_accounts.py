"""Combine the evaluations of single symbols with separate accounts: all accounts are added up, bar by bar.

`experiments.stitching` does the same for consecutive stretches of time.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.evaluation.implausible_results import Run, implausible_result
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import infer_calendar

_OF_MONEY = ("equity", "cash", "costs_paid")
_CARRIED = ("close_", "position_")
_PRICES = ("close_", "fill_price_", "exit_price_")


def evaluation_together(evaluations: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of all accounts together, with the sum of their initial cash; a single one is returned unchanged.

    Before an account's first bar its cash is idle, and after its last bar its equity is constant.
    """
    if len(evaluations) == 1:
        return evaluations[0]
    first = evaluations[0]
    agent, holder, equal = (
        ledger_together([getattr(each, name) for each in evaluations])
        for name in ("agent", "buy_and_hold", "equal_weight")
    )
    calendar = first.calendar
    if any(each.calendar.periods_per_year != calendar.periods_per_year for each in evaluations):
        calendar = infer_calendar(agent["time"])
    rules = replace(first.rules, initial_cash=first.rules.initial_cash * len(evaluations))
    limits: dict[str, int] = {}
    for each in evaluations:
        for name, count in each.limits.items():
            limits[name] = limits.get(name, 0) + count
    return Evaluation(
        split=first.split,
        agent=agent,
        buy_and_hold=_until_the_end_of(agent, holder),
        equal_weight=_until_the_end_of(agent, equal),
        random=[
            _until_the_end_of(agent, ledger_together(runs))
            for runs in zip(*(each.random for each in evaluations), strict=True)
        ],
        calendar=calendar,
        rules=rules,
        limits=limits,
        remarks=tuple(dict.fromkeys(remark for each in evaluations for remark in each.remarks)),
        implausible=implausible_result(Run.of(agent, holder, rules, calendar.periods_per_year)),
    )


def ledger_together(ledgers: Sequence[Ledger]) -> Ledger:
    """One ledger over the bars of all: money is summed, and each symbol keeps its columns.

    The ledgers must have different symbols. Cash and positions add up to the equity, as in each ledger.
    """
    times = np.unique(np.concatenate([ledger["time"] for ledger in ledgers]))
    together: Ledger = {"time": times, **{name: np.zeros(len(times)) for name in _OF_MONEY}}
    if any("interest_days" in ledger for ledger in ledgers):
        together["interest_days"] = np.zeros(len(times))
    kinds = list(dict.fromkeys(kind for ledger in ledgers for kind in _kinds_of(ledger)))
    for ledger in ledgers:
        rows = np.searchsorted(times, ledger["time"])
        latest = np.searchsorted(ledger["time"], times, side="right") - 1  # -1 before the first bar
        for name in _OF_MONEY:
            together[name] += ledger[name][np.maximum(latest, 0)]  # the first row is the start, before any trade
        if "interest_days" in ledger:
            together["interest_days"][rows] = np.maximum(together["interest_days"][rows], ledger["interest_days"])
        (symbol,) = symbols_of(ledger)
        for kind in kinds:
            together[f"{kind}{symbol}"] = _column(ledger.get(f"{kind}{symbol}"), kind, rows, latest)
    return together


def _kinds_of(ledger: Ledger) -> list[str]:
    (symbol,) = symbols_of(ledger)
    return [name.removesuffix(symbol) for name in ledger if name.endswith(f"_{symbol}")]


def _column(own: FloatArray | None, kind: str, rows: NDArray[np.int64], latest: NDArray[np.int64]) -> FloatArray:
    """A column of one symbol on the bars of all symbols."""
    nothing = np.nan if kind in _PRICES else 0.0
    column = np.full(len(latest), nothing)
    if own is None:
        return column
    if kind in _CARRIED:
        return np.asarray(np.where(latest >= 0, own[np.maximum(latest, 0)], nothing))
    column[rows] = own
    return column


def _until_the_end_of(agent: Ledger, ledger: Ledger) -> Ledger:
    """The rows of a baseline at the agent's bars; it may have ended earlier."""
    return {name: values[: len(agent["time"])] for name, values in ledger.items()}
