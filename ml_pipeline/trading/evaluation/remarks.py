"""The sentences of a report: first warnings, then remarks on how to read the numbers."""

import math

import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of, traded_values
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from ml_pipeline.trading.evaluation.implausible_results import FEW_BARS, FEW_TRADES
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.summary import FEWEST_BARS, FEWEST_TRADES

# Limits that do not bind the baselines, see `baselines`.
_LIMITS = (
    "max_position",
    "max_gross",
    "trade_limit_percent",
    "action_threshold",
    "min_cash",
    "limit_bps",
    "stop_loss",
    "take_profit",
)
RANGES = (
    "±: one standard error (of ratios by Lo 2002, for autocorrelated returns). In brackets: the 95 % interval of a "
    "stationary bootstrap."
)
"""The meaning of the ranges in the table."""
_BASELINES = {"buy_and_hold": "buy and hold", "equal_weight": "equal weight"}


def headlines(evaluation: Evaluation) -> list[str]:
    """The sentences above the table: alarms, accounts that never traded, and an agent no better than random."""
    never = _never_traded(evaluation)
    return alarms(evaluation) + (never or _no_better_than_guessing(evaluation))


def alarms(evaluation: Evaluation) -> list[str]:
    """The headlines that question the figures themselves: ruin, implausible results, and few observations."""
    implausible = evaluation.implausible
    return [
        *_ruin(evaluation),
        *([] if implausible is None else [implausible.sentence()]),
        *_few_observations(evaluation),
    ]


def remarks(evaluation: Evaluation) -> list[str]:
    """Remarks on how to read the numbers: data, annualization, fills, costs, limits, and luck."""
    agent, rules = evaluation.agent, evaluation.rules
    where = "the next bar's open" if rules.fill_at == "next_open" else "the close of the decision, optimistically"
    paid = float(agent["costs_paid"][-1])
    bound = ", ".join(f"{name} in {counted(count, 'bar')}" for name, count in sorted(evaluation.limits.items()))
    return [
        *(f"The data: {remark}" for remark in evaluation.remarks),
        annualization(evaluation),
        RANGES,
        f"Orders were filled at {where}. The initial cash was {rules.initial_cash:,.0f}; the agent paid {paid:,.0f} in "
        f"costs, {paid / rules.initial_cash:.1%} of it.",
        f"Limits that bound the agent: {bound}." if bound else "No limit bound the agent.",
        *baselines_without_limits(evaluation),
        *_beside_holding(evaluation),
        f"{_random_ahead(evaluation)} of the {len(evaluation.random)} random policies earned as much as the agent.",
    ]


def standing(evaluation: Evaluation) -> str:
    """How the agent did compared with buy and hold and random policies, in one line."""
    agent, holder = (evaluation.figures[name]["total_return"] for name in ("agent", "buy_and_hold"))
    n_trades = int(evaluation.figures["agent"]["n_trades"])
    if n_trades < FEWEST_TRADES:
        earned = (
            "as much as"
            if math.isclose(agent, holder, abs_tol=1e-6)
            else "more than"
            if agent > holder
            else "less than"
        )
        return (
            f"The agent earned {earned} buy and hold, with {counted(n_trades, 'trade')}: too few to tell skill from "
            "luck. ±: one standard error."
        )
    n_random, ahead = len(evaluation.random), _random_ahead(evaluation)
    beaten = f"all {n_random}" if not ahead else f"{n_random - ahead} of {n_random}"
    return (
        f"The agent earned {'more' if agent > holder else 'no more'} than buy and hold, and more than {beaten} random "
        "policies that trade as much. ±: one standard error."
    )


def _random_ahead(evaluation: Evaluation) -> int:
    """How many random policies earned as much as the agent or more."""
    return sum(ledger["equity"][-1] >= evaluation.agent["equity"][-1] for ledger in evaluation.random)


def annualization(evaluation: Evaluation) -> str:
    return f"Annualized by {evaluation.calendar.periods_per_year:g} ({evaluation.calendar.reason})."


def baselines_without_limits(evaluation: Evaluation) -> list[str]:
    """A sentence if the agent has limits that do not bind buy and hold and equal weight."""
    usual = CostsAndLimits()
    own = [name for name in _LIMITS if getattr(evaluation.rules, name) != getattr(usual, name)]
    if not own:
        return []
    named = ", ".join(f"{name} {getattr(evaluation.rules, name):g}" for name in own)
    both = " and equal weight invest" if "equal_weight" in evaluation.columns else " invests"
    return [f"Buy and hold{both} the whole account: the agent's limits ({named}) bind only the agent."]


def _beside_holding(evaluation: Evaluation) -> list[str]:
    line = evaluation.against_holding
    if np.isnan(line.beta):
        return []
    return [
        f"Against buy and hold, the agent has a beta of {line.beta:.2f} ± {line.beta_se:.2f} and an alpha of "
        f"{line.alpha:+.1%} ± {line.alpha_se:.1%} per year."
    ]


def _ruin(evaluation: Evaluation) -> list[str]:
    sentences = []
    bars = len(evaluation.agent["time"])
    if (ended := evaluation.endings["agent"]) is not None:
        day = str(evaluation.agent["time"][-1].astype("datetime64[m]")).replace("T", " ").removesuffix(" 00:00")
        what = f"the agent {_lost(evaluation.agent)}" if ended == "ruin" else "the agent's cash did not cover a short"
        rest = f"in bar {bars:,} of {evaluation.n_bars:,}; all columns cover those {counted(bars, 'bar')}"
        sentences.append(f"{ended.capitalize()}: {what} and its account was closed on {day}, {rest}.")
    for name in evaluation.columns[1:-1]:
        title = _BASELINES[name]
        ledger: Ledger = getattr(evaluation, name)
        if (ended := evaluation.endings[name]) is not None:
            covered = f"its column covers {len(ledger['time']):,} of the {bars:,} bars"
            sentences.append(
                f"{ended.capitalize()}: {title} {_lost(ledger)} by {str(ledger['time'][-1])[:10]}; {covered}."
            )
    if ended_random := evaluation.n_random_ended:
        of = f"{ended_random} of the {len(evaluation.random)} random policies"
        sentences.append(f"Ruin: the accounts of {of} were closed early; each counts until then.")
    return sentences


def _few_observations(evaluation: Evaluation) -> list[str]:
    """A sentence if there are few bars or trades of the agent, and about the ratios that are left out."""
    agent, n_bars = evaluation.figures["agent"], len(evaluation.agent["time"])
    n_trades = int(agent["n_trades"])
    if n_bars < FEWEST_BARS:
        return [f"Only {counted(n_bars, 'bar')}: below {FEWEST_BARS}, luck decides ratios, so they are not shown."]
    if 0 < n_trades < FEWEST_TRADES:
        which = "ratios" if np.isnan(agent["sharpe"]) else "ratios of trades"
        return [
            f"Only {counted(n_trades, 'trade')}: below {FEWEST_TRADES}, luck decides the agent's {which}, so they are "
            "not shown."
        ]
    few = [
        f"few {what} ({n:,})"
        for n, what, enough in ((n_bars, "bars", FEW_BARS), (n_trades, "trades", FEW_TRADES))
        if 0 < n < enough
    ]
    if not few:
        return []
    return [f"{' and '.join(few).capitalize()}: luck decides much of these figures, so consider their ranges."]


def _lost(ledger: Ledger) -> str:
    return f"lost {min(1 - ledger['equity'][-1] / ledger['equity'][0], 1):.1%} of its money"


def _never_traded(evaluation: Evaluation) -> list[str]:
    idle = [name for name in evaluation.columns[:-1] if not traded_values(getattr(evaluation, name)).any()]
    if not idle:
        return []
    if (cheapest := _cheapest_lot(evaluation)) > evaluation.rules.initial_cash and "buy_and_hold" in idle:
        lot, cash = f"{evaluation.rules.lot_size:,.10g}", f"{evaluation.rules.initial_cash:,.0f}"
        return [
            f"Nothing can be bought: a lot of {lot} costs at least {cheapest:,.0f}, but the account has {cash}; lower "
            "lot_size, or raise initial_cash."
        ]
    sentences = []
    if "agent" in idle:
        kept = ", ".join(f"{name} in {counted(count, 'bar')}" for name, count in sorted(evaluation.limits.items()))
        why = f"limits prevented its orders ({kept})" if kept else "it stayed in cash"
        sentences.append(f"The agent never traded: {why}.")
    if others := [_BASELINES[name] for name in idle if name != "agent"]:
        sentences.append(f"{' and '.join(others).capitalize()} never traded: limits prevented all orders.")
    return sentences


def _cheapest_lot(evaluation: Evaluation) -> float:
    """The lowest cost of one lot of any asset during the evaluation; 0 without lots."""
    closes = [evaluation.agent[f"close_{symbol}"] for symbol in symbols_of(evaluation.agent)]
    return evaluation.rules.lot_size * float(np.nanmin([np.nanmin(close) for close in closes]))


def _no_better_than_guessing(evaluation: Evaluation) -> list[str]:
    agent, guess = (evaluation.figures[name]["total_return"] for name in ("agent", "random"))
    if agent > guess:
        return []
    return [
        f"Warning: the agent ({agent:+.1%}) did not beat random policies that trade as much ({guess:+.1%}), so there "
        "is no evidence that it learned anything useful."
    ]
