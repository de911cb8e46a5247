"""What an agent must beat: holding the market, and guessing. All in the agent's own environment, at its costs.

Guesses keep to the agent's limits; who holds the market is free of them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import ActionMode, TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.metrics import turnover

# Rounds, and runs in each, in which random policies learn to trade as much as asked.
_CALIBRATIONS = 3
_CALIBRATION_RUNS = 3

Act = Callable[[NDArray[np.float32]], Any]


def run_policy(env: StatefulTradingEnv, act: Act, *, seed: int | None = None) -> Ledger:
    """One episode of `env` under `act`, observation -> action, and its ledger.

    Where `act` has a `begin_episode`, that is called first: a policy with a memory forgets the last run.
    """
    getattr(act, "begin_episode", lambda: None)()
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = env.step(act(observation))
        over = terminated or truncated
    return env.ledger()


def buy_and_hold(env: StatefulTradingEnv) -> Ledger:
    """Buys equal parts of the assets that are listed when the run begins, as soon as each trades, and holds them."""
    rules = _unlimited(env.rules, "discrete")
    listed = env.market.close[env.window - 1] > 0
    holder = StatefulTradingEnv(env.market.assets(np.flatnonzero(listed)), rules, window=env.window)
    long = rules.positions.index(1)
    n_assets = int(listed.sum())
    action = long if n_assets == 1 else np.full(n_assets, long)
    return run_policy(holder, lambda _: action)


def equal_weight(env: StatefulTradingEnv) -> Ledger:
    """Holds equal parts of all assets listed when the run begins, brought back to equal parts at every bar."""
    rules = _unlimited(env.rules, "target_weights")
    listed = env.market.close[env.window - 1] > 0
    holder = StatefulTradingEnv(env.market.assets(np.flatnonzero(listed)), rules, window=env.window)
    parts = np.full(int(listed.sum()), 1 / int(listed.sum()))
    return run_policy(holder, lambda _: parts)


def random_policies(
    env: StatefulTradingEnv, *, seed: int = 0, n_policies: int = 10, turnover_of: Ledger | None = None
) -> list[Ledger]:
    """Ledgers of `n_policies` that draw actions evenly from the action space, seeded seed, seed + 1, ...

    With `turnover_of`, they draw a new action so rarely, and hold in between, that on average they trade as much as
    that ledger; where even a draw at every bar trades less, they draw at every bar.
    """
    rarely = 1.0
    if turnover_of is not None:
        wanted = turnover(turnover_of)
        for _ in range(_CALIBRATIONS):
            got = float(np.mean([turnover(_guess(env, seed + i, rarely)) for i in range(_CALIBRATION_RUNS)]))
            rarely = min(1.0, rarely * wanted / got) if got > 0 else 1.0
    return [_guess(env, seed + i, rarely) for i in range(n_policies)]


def hold_action(env: StatefulTradingEnv) -> Any:
    """The action that trades nothing at the start of an episode, and, in modes of changes, ever."""
    if env.rules.action_mode in {"target_weights", "trade"}:
        return np.zeros(len(env.market.symbols), dtype=np.float32)
    choice = 1 if env.rules.action_mode == "buy_hold_sell" else env.rules.positions.index(0)
    return choice if len(env.market.symbols) == 1 else np.full(len(env.market.symbols), choice)


def _unlimited(rules: TradingRules, action_mode: ActionMode) -> TradingRules:
    """The same costs and lots, without what limits an agent only: who holds the market holds all of it."""
    return replace(
        rules,
        action_mode=action_mode,
        max_position=1.0,
        max_gross=1.0,
        trade_limit_percent=None,
        action_threshold=0.0,
        min_cash=0.0,
        on_limit="clip",
    )


def _guess(env: StatefulTradingEnv, seed: int, probability: float) -> Ledger:
    """A run that draws an action with `probability` at each bar, and else keeps what it has."""
    env.action_space.seed(seed)
    generator = np.random.default_rng(seed)
    hold = hold_action(env)
    of_changes = env.rules.action_mode in {"buy_hold_sell", "trade"}
    latest = hold

    def act(_: NDArray[np.float32]) -> Any:
        nonlocal latest
        if probability >= 1.0 or generator.random() < probability:
            latest = env.action_space.sample()
            return latest
        return hold if of_changes else latest

    return run_policy(env, act)
