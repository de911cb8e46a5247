"""Run an agent and its baselines over the same bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import (
    Act,
    ActionRecorder,
    buy_and_hold,
    equal_weight,
    random_policies,
    run_policy,
)
from ml_pipeline.trading.evaluation.implausible_results import Run, judge
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.timeframes import Calendar


class Comparison(NamedTuple):
    """An evaluation, its environment, and the agent's actions."""

    evaluation: Evaluation
    env: StatefulTradingEnv
    actions: list[Any]


@dataclass(frozen=True, eq=False)
class MarketPart:
    """The context of an evaluation besides its bars.

    remarks: sentences about problems of the data. feature_columns: the columns of each feature of the market, so that
    an implausible result can name its most important feature.
    """

    split: str
    calendar: Calendar
    remarks: tuple[str, ...] = ()
    feature_columns: Mapping[str, Sequence[int]] = field(default_factory=dict)


def compare_with_baselines(
    env: StatefulTradingEnv, act: Act, part: MarketPart, *, seed: int = 0, n_policies: int = 10
) -> Comparison:
    """Run `act` through `env`, and the baselines over the same bars, at most until the agent's account is closed.

    seed: of the `n_policies` random policies.
    """
    recorder = ActionRecorder(act)
    agent = run_policy(env, recorder)
    limits, n_bars = dict(env.limit_counts), env.market.n_bars - env.window + 1
    env = _until_the_end_of(agent, env)
    holder = buy_and_hold(env)
    run = Run.of(agent, holder, env.rules, part.calendar.periods_per_year)
    evaluation = Evaluation(
        split=part.split,
        agent=agent,
        buy_and_hold=holder,
        equal_weight=equal_weight(env),
        random=random_policies(env, seed=seed, n_policies=n_policies, turnover_of=agent),
        calendar=part.calendar,
        rules=env.rules,
        limits=limits,
        remarks=part.remarks,
        n_bars=n_bars,
        implausible=judge(env, act, run, part.feature_columns),
    )
    return Comparison(evaluation, env, recorder.actions)


def _until_the_end_of(ledger: Ledger, env: StatefulTradingEnv) -> StatefulTradingEnv:
    """The environment with only the bars of the ledger, which ruin or a margin call may have ended early."""
    n_bars = env.window - 1 + len(ledger["time"])
    if n_bars == env.market.n_bars:
        return env
    return StatefulTradingEnv(env.market.bars(0, n_bars), env.rules, window=env.window)
