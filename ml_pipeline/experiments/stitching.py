"""Stitches evaluations of consecutive folds into one: each continues with the final equity of the previous one.

Each begins and ends without a position. Its open positions are closed at the last close, at the usual costs, in an
extra row: the agent, holding and random policies pay alike, and the total growth is the product over folds.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from ml_pipeline.trading.accounts.execution import PLAIN, RUIN_FRACTION
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.evaluation.implausible_results import Run, implausible_result
from ml_pipeline.trading.evaluation.results import Evaluation

_OF_MONEY = ("equity", "cash", "costs_paid")
_OF_QUANTITY = ("position_", "filled_", "exited_")


def stitched_evaluation(folds: Sequence[Evaluation], split: str) -> tuple[Evaluation, list[int]]:
    """(the folds as one evaluation, the rows at which a new fold begins).

    folds: each `closed_at_the_end`. Each begins at the last bar of the previous one, in the row that closed its
    positions. A ruined account trades no later fold.
    """
    first = folds[0]
    agent = stitched_ledger([fold.agent for fold in folds])
    holder = stitched_ledger([fold.buy_and_hold for fold in folds])
    n_traded = _n_traded([fold.agent for fold in folds])
    lengths = [len(fold.agent["time"]) - (i > 0) for i, fold in enumerate(folds[:n_traded])]
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
        n_bars=sum(fold.n_bars for fold in folds) - len(folds) + 1,
        implausible=implausible_result(Run.of(agent, holder, first.rules, first.calendar.periods_per_year)),
    )
    return whole, [end - 1 for end in accumulate(lengths[:-1])]


def closed_at_the_end(evaluation: Evaluation) -> Evaluation:
    """The evaluation with a row added to each ledger that closes all positions."""
    terms = (evaluation.rules, evaluation.calendar.periods_per_year)
    return replace(
        evaluation,
        agent=closed_ledger(evaluation.agent, *terms),
        buy_and_hold=closed_ledger(evaluation.buy_and_hold, *terms),
        equal_weight=closed_ledger(evaluation.equal_weight, *terms),
        random=[closed_ledger(ledger, *terms) for ledger in evaluation.random],
        n_bars=evaluation.n_bars + 1,
    )


def closed_ledger(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> Ledger:
    """The ledger with one more row, in which all positions are closed at their last close.

    A cash account that cannot pay for this closes at no cost.
    """
    symbols = symbols_of(ledger)
    held, closes = ([float(ledger[f"{kind}_{symbol}"][-1]) for symbol in symbols] for kind in ("position", "close"))
    closes = [close if quantity else 0.0 for quantity, close in zip(held, closes, strict=True)]
    half_spreads = [float(ledger.get(f"half_spread_{symbol}", np.zeros(1))[-1]) for symbol in symbols]
    filled = [0.0] * len(symbols)
    before, orders = float(ledger["cash"][-1]), [-quantity for quantity in held]
    terms = rules.terms(periods_per_year).closing()
    equity = float(ledger["equity"][-1])
    _, costs = PLAIN.fill_orders(orders, before, equity, closes, half_spreads, terms, filled)
    cash = before + sum(quantity * close for quantity, close in zip(held, closes, strict=True)) - costs
    row = {name: values[-1] for name, values in ledger.items()}
    row |= {"cash": cash, "equity": cash, "costs_paid": row["costs_paid"] + costs, "interest_days": 0.0}
    for symbol, order, close in zip(symbols, orders, closes, strict=True):
        row |= {f"position_{symbol}": 0.0, f"filled_{symbol}": order, f"exited_{symbol}": 0.0}
        row |= {f"fill_price_{symbol}": close if order else np.nan, f"exit_price_{symbol}": np.nan}
    return {name: np.append(values, np.array(row[name], values.dtype)) for name, values in ledger.items()}


def stitched_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """One ledger of consecutive runs, with the money and quantities of each scaled to continue the previous one.

    Each ends without a position, at the time and equity at which the next one begins: these rows are merged.
    """
    parts = [ledgers[0]]
    for ledger in ledgers[1 : _n_traded(ledgers)]:
        last = parts[-1]
        scaled = _scaled(ledger, float(last["equity"][-1] / ledger["equity"][0]))
        scaled["costs_paid"] = scaled["costs_paid"] + last["costs_paid"][-1]
        parts.append({name: values[1:] for name, values in scaled.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in ledgers[0]}


def _n_traded(ledgers: Sequence[Ledger]) -> int:
    """The number of runs that are traded: all, or up to the first ruin."""
    ruined = [ledger["equity"][-1] <= RUIN_FRACTION * ledger["equity"][0] for ledger in ledgers]
    return ruined.index(True) + 1 if True in ruined else len(ledgers)


def _scaled(ledger: Ledger, factor: float) -> Ledger:
    return {
        name: values * factor if name in _OF_MONEY or name.startswith(_OF_QUANTITY) else values
        for name, values in ledger.items()
    }


def _cut(ledger: Ledger, agent: Ledger) -> Ledger:
    """The rows up to the agent's last one."""
    return {name: values[: len(agent["time"])] for name, values in ledger.items()}
