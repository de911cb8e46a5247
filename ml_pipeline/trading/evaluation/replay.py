"""Runs recorded actions again, at other costs or later: the same orders, whatever the policy would have done there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.evaluation.baselines import Act, hold_action
from ml_pipeline.trading.market.data import FloatArray


class ActionRecorder:
    """A policy that keeps a copy of each action that it takes, in `actions`.

    `actions` begins anew with each episode.
    """

    def __init__(self, act: Act) -> None:
        self._act = act
        self.actions: list[Any] = []

    def begin_episode(self) -> None:
        self.actions = []
        getattr(self._act, "begin_episode", lambda: None)()

    def __call__(self, observation: NDArray[np.float32]) -> Any:
        action = self._act(observation)
        self.actions.append(action.copy() if isinstance(action, np.ndarray) else action)
        return action


def replayed_equity(
    market: PreparedMarket, rules: TradingRules, actions: Sequence[Any], *, window: int, delay: int = 0
) -> FloatArray:
    """The equity of an account that takes these actions, from its start: (n + 1,), n at most len(actions).

    delay: bars by which each action comes later; until the first, the account is flat, and the last are left out. Each
    order is sized and filled at the prices of the bar in which it then comes. Ruin and margin calls end the run.
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
