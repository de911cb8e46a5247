"""Trading environments that report the figures of each episode in the info of its last step.

    {"episode": {"r": ..., "l": ...}, "drawdown": ..., "turnover": ..., "sharpe_ratio": ..., "max_drawdown": ...}

besides the equity, which every environment reports. r is the sum of rewards and l the number of steps. Drawdowns are
fractions of the highest equity so far, 0 or below: `drawdown` at the end of the episode, `max_drawdown` the largest.
`turnover` and `sharpe_ratio` (annualized; NaN if the equity never changed) are as in reports. Observations, rewards and
accounts are unchanged, bit for bit.

The figures need one row per step until the episode ends; `FastTradingEnv` and `BatchedTradingEnv` keep none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.evaluation.metrics import drawdown_fraction, returns_of, sharpe

EPISODE_FIGURES = ("drawdown", "turnover", "sharpe_ratio", "max_drawdown")
_RAN = ("r", "l", "mean", "squares", "turnover", "deepest", "peak", "largest")
_LEAST = 1e-12  # a deviation below this fraction of the largest return is a rounding error, as in `metrics`


class EpisodeFiguresEnv(FastTradingEnv):
    """`FastTradingEnv` with the figures of an episode in its last info."""

    _return = 0.0
    _first: int | None = None
    """The bar of the reset; None if the restored state has no path, so that the episode's figures are unknown."""

    def _begin(self, bar: int) -> None:
        super()._begin(bar)
        self._first = bar
        self._return = 0.0
        self._path: list[list[float]] = []  # per step: equity and fills, (1 + A,) or (1 + 4 A,)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        account = self._account
        row = [account.equity, *account.filled]
        if self._acts_within_bars:
            row += [*account.fill_prices, *account.exited, *account.exit_prices]
        self._path.append(row)
        self._return += reward
        if terminated or truncated:
            info = {**info, **self._figures()}
        return observation, reward, terminated, truncated, info

    def get_plain_state(self) -> dict[str, Any]:
        path = {"first": self._first, "return": self._return, "rows": self._path}
        return {**super().get_plain_state(), "path": path}

    def set_plain_state(self, state: dict[str, Any]) -> None:
        super().set_plain_state(state)
        path = state.get("path", {"first": None, "return": 0.0, "rows": []})
        self._first, self._return, self._path = path["first"], path["return"], [list(row) for row in path["rows"]]

    def _figures(self) -> dict[str, Any]:
        if self._first is None:
            return {}
        path = np.array(self._path)
        equity = np.concatenate([[float(self.rules.initial_cash)], path[:, 0]])
        n_steps, n_assets = len(path), len(self.market.symbols)
        filled, *within = np.split(path[:, 1:], range(n_assets, path.shape[1] - 1, n_assets), axis=1)
        prices = within[0] if within else self._fill_prices[self._first : self._first + n_steps]
        traded = np.abs(filled) * prices
        if within:
            traded = traded + np.abs(within[1]) * within[2]
        drawdowns = drawdown_fraction(equity)
        return {
            "episode": {"r": self._return, "l": n_steps},
            "drawdown": float(drawdowns[-1]),
            "turnover": float((traded.sum(axis=1) / equity[:-1]).sum()),
            "sharpe_ratio": sharpe(returns_of(equity), self.market.periods_per_year),
            "max_drawdown": float(drawdowns.min()),
        }


class BatchedEpisodeFiguresEnv(BatchedTradingEnv):
    """`BatchedTradingEnv` of arrays (not tensors) with the figures of episodes in infos["final_info"]."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.device is not None:
            raise UserError(f"Figures of episodes need arrays, but the environments are on {self.device}.")

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._ran = {name: np.zeros(self.num_envs) for name in _RAN}
        self._ran["peak"] = self._now.equity.copy()
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows, before = self._now.rows.copy() if self._begun else None, self._now.equity.copy() if self._begun else None
        self._ended_equity: NDArray[np.float64] | None = None
        observations, rewards, terminated, truncated, infos = super().step(actions)
        assert before is not None  # super().step() refuses an environment that was not reset
        done = terminated | truncated
        ended = self._ended_equity
        self._add(rows, before, self._now.equity if ended is None else ended, rewards)
        if ended is not None:
            figures = {**infos["final_info"], **self._final_info(done, ended)}
            infos = {**infos, "final_info": figures, "_final_info": done.copy()}
            for name, values in self._ran.items():
                values[done] = self._now.equity[done] if name == "peak" else 0.0
        return observations, rewards, terminated, truncated, infos

    def _restore(self, states: Sequence[dict[str, Any]], *, seed: int) -> None:
        begun = {"ran_peak": float(self.rules.initial_cash)}  # for states of environments without figures
        unknown = {f"ran_{name}": 0.0 for name in _RAN} | begun
        super()._restore([{**unknown, **state} for state in states], seed=seed)

    def _columns(self) -> dict[str, Any]:
        return {**super()._columns(), **{f"ran_{name}": values for name, values in self._ran.items()}}

    def _set_columns(self, columns: dict[str, Any]) -> None:
        super()._set_columns(columns)
        self._ran = {name: columns[f"ran_{name}"] for name in _RAN}

    def _begin_again(self, ended: Any) -> None:
        self._ended_equity = self._now.equity.copy()
        super()._begin_again(ended)

    def _add(self, rows: Any, before: Any, after: Any, rewards: Any) -> None:
        ran = self._ran
        traded = np.abs(self._filled) * self._tables.fill_prices[:, rows]
        if self._bars is not None:
            _, exited, exit_prices, _, fill_prices = self._exits
            traded = np.abs(self._filled) * fill_prices + np.abs(exited) * exit_prices
        ran["r"] += rewards
        ran["l"] += 1
        ran["turnover"] += traded.sum(axis=0) / before
        worth = np.maximum(after, 0.0)
        np.maximum(ran["peak"], worth, out=ran["peak"])
        np.minimum(ran["deepest"], worth / ran["peak"] - 1.0, out=ran["deepest"])
        returns = worth / before - 1.0
        np.maximum(ran["largest"], np.abs(returns), out=ran["largest"])
        distance = returns - ran["mean"]  # mean and squares: Welford 1962
        ran["mean"] += distance / ran["l"]
        ran["squares"] += distance * (returns - ran["mean"])

    def _final_info(self, done: NDArray[np.bool_], equity: NDArray[np.float64]) -> dict[str, Any]:
        ran, year = self._ran, self._markets[0].periods_per_year
        with np.errstate(all="ignore"):
            deviation = np.sqrt(ran["squares"] / (ran["l"] - 1))
            varies = deviation > _LEAST * np.maximum(ran["largest"], _LEAST)
            ratio = np.where(varies, ran["mean"] / deviation * np.sqrt(year), np.nan)
        figures = {
            "drawdown": np.maximum(equity, 0.0) / ran["peak"] - 1.0,
            "turnover": ran["turnover"].copy(),
            "sharpe_ratio": ratio,
            "max_drawdown": ran["deepest"].copy(),
        }
        episode = {"r": ran["r"].copy(), "_r": done.copy(), "l": ran["l"].astype(np.int64), "_l": done.copy()}
        marks = {f"_{name}": done.copy() for name in ("episode", *figures)}
        return {"episode": episode, **figures, **marks}
