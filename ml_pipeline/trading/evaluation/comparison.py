"""Runs an agent and what it must beat over the same bars."""

from typing import Any, NamedTuple

from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, buy_and_hold, equal_weight, random_policies, run_policy
from ml_pipeline.trading.evaluation.replay import ActionRecorder
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.calendar import Calendar


class Comparison(NamedTuple):
    """An evaluation, the environment that it was made in, and the actions that the agent took there."""

    evaluation: Evaluation
    env: StatefulTradingEnv
    actions: list[Any]


def compare_with_baselines(
    env: StatefulTradingEnv,
    act: Act,
    *,
    split: str,
    calendar: Calendar,
    seed: int = 0,
    n_policies: int = 10,
    remarks: tuple[str, ...] = (),
) -> Comparison:
    """Run `act` through `env`, and the baselines over the bars until the end of its account.

    seed: of the `n_policies` random policies. remarks: about what is wrong with the data.
    """
    recorder = ActionRecorder(act)
    agent = run_policy(env, recorder)
    limits, n_bars = dict(env.limit_counts), env.market.n_bars - env.window + 1
    env = _until_the_end_of(agent, env)
    evaluation = Evaluation(
        split=split,
        agent=agent,
        buy_and_hold=buy_and_hold(env),
        equal_weight=equal_weight(env),
        random=random_policies(env, seed=seed, n_policies=n_policies, turnover_of=agent),
        calendar=calendar,
        rules=env.rules,
        limits=limits,
        remarks=remarks,
        n_bars=n_bars,
    )
    return Comparison(evaluation, env, recorder.actions)


def _until_the_end_of(ledger: Ledger, env: StatefulTradingEnv) -> StatefulTradingEnv:
    """The environment with only the bars of the ledger, which ruin or a margin call may have cut short."""
    n_bars = env.window - 1 + len(ledger["time"])
    if n_bars == env.market.n_bars:
        return env
    return StatefulTradingEnv(env.market.bars(0, n_bars), env.rules, window=env.window)
