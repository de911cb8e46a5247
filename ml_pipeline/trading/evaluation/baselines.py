"""Baselines on the agent's bars and at its costs, equity paths of policies, and replays of actions.

Random policies obey the agent's limits; buy and hold and equal weight do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.runtime.acting import begin_episode
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import ActionMode, TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.metrics import turnover
from ml_pipeline.trading.market.data import FloatArray

# Rounds, and runs per round, that calibrate how often random policies trade.
_CALIBRATIONS = 3
_CALIBRATION_RUNS = 3

Act = Callable[[NDArray[np.float32]], Any]


def run_policy(env: StatefulTradingEnv, act: Act, *, seed: int | None = None) -> Ledger:
    """Run one episode of `env` as `pass_through`, and return its ledger."""
    pass_through(env, act, seed=seed)
    return env.ledger()


def pass_through(env: FastTradingEnv, act: Act, *, seed: int | None = None) -> None:
    """Run one episode of `env` with `act`, observation -> action.

    If `act` has a `begin_episode`, it is called first, to reset the memory of a recurrent policy.
    """
    begin_episode(act)
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = env.step(act(observation))
        over = terminated or truncated


def buy_and_hold(env: StatefulTradingEnv) -> Ledger:
    """Buy equal parts of all assets that exist at the start, each as soon as it trades, and hold them."""
    rules = _unlimited(env.rules, "discrete")
    listed = env.market.close[env.window - 1] > 0
    holder = StatefulTradingEnv(env.market.assets(np.flatnonzero(listed)), rules, window=env.window)
    long = rules.positions.index(1)
    n_assets = int(listed.sum())
    action = long if n_assets == 1 else np.full(n_assets, long)
    return run_policy(holder, lambda _: action)


def equal_weight(env: StatefulTradingEnv) -> Ledger:
    """Hold equal parts of all assets that exist at the start, and rebalance at every bar."""
    rules = _unlimited(env.rules, "target_weights")
    listed = env.market.close[env.window - 1] > 0
    holder = StatefulTradingEnv(env.market.assets(np.flatnonzero(listed)), rules, window=env.window)
    parts = np.full(int(listed.sum()), 1 / int(listed.sum()))
    return run_policy(holder, lambda _: parts)


def random_policies(
    env: StatefulTradingEnv, *, seed: int = 0, n_policies: int = 10, turnover_of: Ledger | None = None
) -> list[Ledger]:
    """Ledgers of `n_policies` that sample actions uniformly from the action space, seeded seed, seed + 1, ...

    turnover_of: sample less often, and hold in between, so that the mean turnover is close to that of this ledger. If
    sampling at every bar trades less, they sample at every bar.
    """
    probability = 1.0
    if turnover_of is not None:
        wanted = turnover(turnover_of)
        for _ in range(_CALIBRATIONS):
            got = float(np.mean([turnover(_random_run(env, seed + i, probability)) for i in range(_CALIBRATION_RUNS)]))
            probability = min(1.0, probability * wanted / got) if got > 0 else 1.0
    return [_random_run(env, seed + i, probability) for i in range(n_policies)]


def hold_action(rules: TradingRules, n_assets: int) -> Any:
    """An action that does not trade at the start of an episode, or at any time with "trade" and "buy_hold_sell"."""
    if rules.action_mode in {"target_weights", "trade"}:
        return np.zeros(n_assets, dtype=np.float32)
    choice = 1 if rules.action_mode == "buy_hold_sell" else rules.positions.index(0)
    return choice if n_assets == 1 else np.full(n_assets, choice)


def _unlimited(rules: TradingRules, action_mode: ActionMode) -> TradingRules:
    """The same costs and lots without the agent's limits, so that a baseline can invest the whole account."""
    return replace(
        rules,
        action_mode=action_mode,
        max_position=1.0,
        max_gross=1.0,
        trade_limit_percent=None,
        action_threshold=0.0,
        min_cash=0.0,
        flat_at_close=False,
        limit_bps=None,
        stop_loss=None,
        take_profit=None,
        on_limit="clip",
    )


def _random_run(env: StatefulTradingEnv, seed: int, probability: float) -> Ledger:
    """The ledger of a run that samples an action with `probability` at each bar, and otherwise holds."""
    env.action_space.seed(seed)
    generator = np.random.default_rng(seed)
    hold = hold_action(env.rules, len(env.market.symbols))
    holds_by_action = env.rules.action_mode in {"buy_hold_sell", "trade"}
    latest = hold

    def act(_: NDArray[np.float32]) -> Any:
        nonlocal latest
        if probability >= 1.0 or generator.random() < probability:
            latest = env.action_space.sample()
            return latest
        return hold if holds_by_action else latest

    return run_policy(env, act)


class EquityPath(NamedTuple):
    """times: datetime64 (n + 1,), the start and the closes of bars. equity: float64 (n + 1,), after costs."""

    times: NDArray[np.datetime64]
    equity: FloatArray
    periods_per_year: float


def equity_path(env: FastTradingEnv, act: Act) -> EquityPath:
    """Run one episode of `env` as `pass_through`. An account that is closed early keeps its last equity to the end."""
    times = env.market.times[env.window - 1 :]
    watched = _EquityBefore(env, act)
    pass_through(env, watched)
    seen = [*watched.equity, env.equity]
    equity = np.full(len(times), seen[-1])
    equity[: len(seen)] = seen
    return EquityPath(times, equity, env.market.periods_per_year)


class _EquityBefore:
    """A policy that records the account's equity before each action."""

    def __init__(self, env: FastTradingEnv, act: Act) -> None:
        self._env, self._act = env, act
        self.equity: list[float] = []

    def begin_episode(self) -> None:
        begin_episode(self._act)

    def __call__(self, observation: NDArray[np.float32]) -> Any:
        self.equity.append(self._env.equity)
        return self._act(observation)


class ActionRecorder:
    """A policy that copies each action to `actions`, which is cleared at the start of each episode."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.actions: list[Any] = []

    def begin_episode(self) -> None:
        self.actions = []
        begin_episode(self._act)

    def __call__(self, observation: NDArray[np.float32]) -> Any:
        action = self._act(observation)
        self.actions.append(action.copy() if isinstance(action, np.ndarray) else action)
        return action


def replayed_equity(
    market: PreparedMarket, rules: TradingRules, actions: Sequence[Any], *, window: int, delay: int = 0
) -> FloatArray:
    """The equity of an account that takes these actions, from its start: (n + 1,), n at most len(actions).

    delay: bars by which each action is late; the account is flat before the first, and the last actions are left out.
    Each order is sized and filled at the prices of its later bar. Ruin and margin calls end the run.
    """
    env = _Account(market, rules, window=window)
    env.reset()
    late = [hold_action(rules, len(market.symbols))] * delay + list(actions)
    equity = [env.equity]
    for action in late[: len(actions)]:
        _, _, terminated, truncated, _ = env.step(action)
        equity.append(env.equity)
        if terminated or truncated:
            break
    return np.array(equity)


class _Account(FastTradingEnv):
    @property
    def equity(self) -> float:
        return float(self._account.equity)
