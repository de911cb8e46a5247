"""Evaluations of stretches that follow one another, as one: each goes on with the money that the last one left."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ml_pipeline.trading.accounts.execution import RUIN_FRACTION
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.evaluation.implausible_results import Run, implausible_result
from ml_pipeline.trading.evaluation.results import Evaluation

_OF_MONEY = ("equity", "cash", "costs_paid")
_OF_QUANTITY = ("position_", "filled_", "exited_")


def stitched_evaluation(folds: Sequence[Evaluation], split: str) -> tuple[Evaluation, list[int]]:
    """(the folds as one evaluation, the rows at which a new fold begins).

    A fold begins at the bar at which the one before ended. There its positions are closed at the close, at no cost, in
    a row of its own. An account that is ruined trades no later fold.
    """
    first = folds[0]
    agent = stitched_ledger([fold.agent for fold in folds])
    holder = stitched_ledger([fold.buy_and_hold for fold in folds])
    n_traded = _n_traded([fold.agent for fold in folds])
    lengths = [len(fold.agent["time"]) for fold in folds[:n_traded]]
    limits: dict[str, int] = {}
    for fold in folds[:n_traded]:
        for name, count in fold.limits.items():
            limits[name] = limits.get(name, 0) + count
    whole = Evaluation(
        split=split,
        agent=agent,
        buy_and_hold=_cut(holder, agent),
        equal_weight=_cut(stitched_ledger([fold.equal_weight for fold in folds]), agent),
        random=[_cut(stitched_ledger(runs), agent) for runs in zip(*(fold.random for fold in folds), strict=True)],
        calendar=first.calendar,
        rules=first.rules,
        limits=limits,
        remarks=tuple(dict.fromkeys(remark for fold in folds for remark in fold.remarks)),
        n_bars=sum(fold.n_bars for fold in folds),
        implausible=implausible_result(Run.of(agent, holder, first.rules, first.calendar.periods_per_year)),
    )
    return whole, list(accumulate(lengths[:-1]))


def stitched_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """One ledger of runs that follow one another, the money and quantities of each scaled to go on from the last."""
    parts = [ledgers[0]]
    for ledger in ledgers[1 : _n_traded(ledgers)]:
        last = parts[-1]
        factor = float(last["equity"][-1] / ledger["equity"][0])
        parts.append(_begun_with(_scaled(ledger, factor), last))
    return {name: np.concatenate([part[name] for part in parts]) for name in ledgers[0]}


def _n_traded(ledgers: Sequence[Ledger]) -> int:
    """How many of the runs are traded: all, or those up to the first that is ruined."""
    ruined = [ledger["equity"][-1] <= RUIN_FRACTION * ledger["equity"][0] for ledger in ledgers]
    return ruined.index(True) + 1 if True in ruined else len(ledgers)


def _scaled(ledger: Ledger, factor: float) -> Ledger:
    return {
        name: values * factor if name in _OF_MONEY or name.startswith(_OF_QUANTITY) else values
        for name, values in ledger.items()
    }


def _begun_with(ledger: Ledger, last: Ledger) -> Ledger:
    """The ledger, whose first row closes what the `last` one held, at the close at which that was valued."""
    begun = {name: values.copy() for name, values in ledger.items()}
    begun["costs_paid"] += last["costs_paid"][-1]
    for symbol in symbols_of(ledger):
        held = last[f"position_{symbol}"][-1]
        begun[f"filled_{symbol}"][0] = -held
        if held:
            begun[f"fill_price_{symbol}"][0] = last[f"close_{symbol}"][-1]
        if f"half_spread_{symbol}" in begun:
            begun[f"half_spread_{symbol}"][0] = 0.0
    return begun


def _cut(ledger: Ledger, agent: Ledger) -> Ledger:
    """The rows until the end of the agent's account."""
    return {name: values[: len(agent["time"])] for name, values in ledger.items()}
