"""The equity of an account, bar by bar, and nothing else: what a pass earns, without a ledger."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, pass_through
from ml_pipeline.trading.market.data import FloatArray


class EquityPath(NamedTuple):
    """times: datetime64 (n + 1,), the closes of the bars, the start first. equity: float64 (n + 1,), after costs."""

    times: NDArray[np.datetime64]
    equity: FloatArray
    periods_per_year: float


def equity_path(env: FastTradingEnv, act: Act) -> EquityPath:
    """Run one episode of `env` as `pass_through`. An account that was closed early keeps its last equity to the end."""
    times = env.market.times[env.window - 1 :]
    watched = _EquityBefore(env, act)
    pass_through(env, watched)
    seen = [*watched.equity, env.equity]
    equity = np.full(len(times), seen[-1])
    equity[: len(seen)] = seen
    return EquityPath(times, equity, env.market.periods_per_year)


class _EquityBefore:
    """A policy that notes the account's equity before each of its actions."""

    def __init__(self, env: FastTradingEnv, act: Act) -> None:
        self._env, self._act = env, act
        self.equity: list[float] = []

    def begin_episode(self) -> None:
        getattr(self._act, "begin_episode", lambda: None)()

    def __call__(self, observation: NDArray[np.float32]) -> Any:
        self.equity.append(self._env.equity)
        return self._act(observation)
