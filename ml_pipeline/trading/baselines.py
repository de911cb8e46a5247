"""What an agent must beat: holding the market, and guessing. Both in the agent's own environment, at its costs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.ledger import Ledger
from ml_pipeline.trading.stateful_env import StatefulTradingEnv

Act = Callable[[NDArray[np.float32]], Any]


def run_policy(env: StatefulTradingEnv, act: Act, *, seed: int | None = None) -> Ledger:
    """One episode of `env` under `act`, observation -> action, and its ledger."""
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = env.step(act(observation))
        over = terminated or truncated
    return env.ledger()


def buy_and_hold(env: StatefulTradingEnv) -> Ledger:
    """Buys equal parts of the assets that are listed when the run begins, as soon as each trades, and holds them."""
    rules = replace(env.rules, action_mode="discrete")
    listed = env.market.close[env.window - 1] > 0
    holder = StatefulTradingEnv(env.market.assets(np.flatnonzero(listed)), rules, window=env.window)
    long = rules.positions.index(1)
    n_assets = int(listed.sum())
    action = long if n_assets == 1 else np.full(n_assets, long)
    return run_policy(holder, lambda _: action)


def random_policies(env: StatefulTradingEnv, *, seed: int = 0, n_policies: int = 10) -> list[Ledger]:
    """Ledgers of `n_policies` that draw each action evenly from the action space, seeded seed, seed + 1, ..."""
    ledgers = []
    for i in range(n_policies):
        env.action_space.seed(seed + i)
        ledgers.append(run_policy(env, lambda _: env.action_space.sample()))
    return ledgers
