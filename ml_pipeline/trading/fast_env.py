"""The trading environment to train on: it remembers cash and holdings, and nothing of the past.

A assets, W bars of window, D features of a bar.
"""

from math import isfinite
from operator import index
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.execution import equity_of, fill_orders, is_ruined, log_return, size_orders
from ml_pipeline.trading.prepared_market import PreparedMarket
from ml_pipeline.trading.rules import TradingRules


class FastTradingEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """Decide at the close of bar t, fill at the open of t+1 (or the close of t), mark at the close of t+1.

    Observation: float32 (W * D + A,), the scaled features of the last W bars, oldest first, then each asset's weight in
    the equity, all within -clip..clip. Action: see `TradingRules`; an asset without a bar to fill in keeps what it has.
    Reward: ln(V[t+1] / V[t]) of the equity V after costs. Ruin terminates; the end of the data, or of
    `episode_length` steps, truncates.

    episode_length: steps of an episode, begun at a random bar (training); None passes once through all (evaluation).
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's class attribute

    def __init__(
        self,
        market: PreparedMarket,
        rules: TradingRules | None = None,
        *,
        window: int = 1,
        episode_length: int | None = None,
    ) -> None:
        if market.n_bars < window + 1:
            raise UserError(f"A step on a window of {window} needs {window + 1} bars, but there are {market.n_bars}.")
        self.market = market
        self.rules = rules = rules or TradingRules()
        self.window = window
        self.episode_length = episode_length
        n_assets = len(market.symbols)
        self._row_size = market.features.shape[1]
        self._features = market.features.reshape(-1)
        self._observation_size = window * self._row_size + n_assets
        self.observation_space = spaces.Box(-market.clip, market.clip, (self._observation_size,), np.float32)
        self.action_space = _action_space(rules, n_assets)
        self._position_weights = [position / n_assets for position in rules.positions]

        next_open = rules.fill_at == "next_open"
        # Row t: at what price, and whether, an order decided at bar t is filled.
        self._fill_prices = market.open[1:] if next_open else market.close[:-1]
        fillable = market.tradable[1:] & (market.close[:-1] > 0) if next_open else market.tradable[:-1]
        self._fillable = None if fillable.all() else fillable
        self._always = [True] * n_assets
        self._cost_rate = rules.cost_rate
        self._begin(window - 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        start = self.window - 1
        if self.episode_length is not None:
            latest = max(start, self.market.n_bars - 1 - self.episode_length)
            start = int(self.np_random.integers(start, latest + 1))
        self._begin(start)
        return self._observe(), {}

    def _begin(self, bar: int) -> None:
        n_assets = len(self.market.symbols)
        self._bar = bar
        self._last_bar = self.market.n_bars - 1
        if self.episode_length is not None:
            self._last_bar = min(self._last_bar, bar + self.episode_length)
        self._cash = self._equity = self._start_equity = float(self.rules.initial_cash)
        self._costs = 0.0  # of the last step
        self._ruined = False
        self._holdings = [0.0] * n_assets
        self._orders = [0.0] * n_assets
        self._filled = [0.0] * n_assets
        self._closes = self.market.close[bar].tolist()
        self._choices = [self.rules.positions.index(0)] * n_assets

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        bar, holdings, filled = self._bar, self._holdings, self._filled
        if bar >= self._last_bar or self._ruined:
            raise gymnasium.error.ResetNeeded("The episode is over; call reset() before the next step().")
        fillable = self._always if self._fillable is None else self._fillable[bar].tolist()
        if self.rules.action_mode == "discrete":
            weights, fillable = self._chosen_weights(action, fillable)
        else:
            weights = self._target_weights(action)

        prices = self._fill_prices[bar].tolist()
        size_orders(weights, fillable, self._cash, holdings, prices, self._orders)
        self._cash, self._costs = fill_orders(self._orders, self._cash, prices, self._cost_rate, filled)
        for i, quantity in enumerate(filled):
            holdings[i] += quantity

        self._bar = bar = bar + 1
        self._closes = self.market.close[bar].tolist()
        equity = equity_of(self._cash, holdings, self._closes)
        reward = log_return(self._equity, equity, self._start_equity)
        self._equity = equity
        self._ruined = ruined = is_ruined(equity, self._start_equity)
        return self._observe(), reward, ruined, bar >= self._last_bar and not ruined, {}

    def _observe(self) -> NDArray[np.float32]:
        stop = (self._bar + 1) * self._row_size
        size = self.window * self._row_size
        observation = np.empty(self._observation_size, dtype=np.float32)
        observation[:size] = self._features[stop - size : stop]
        clip, equity = self.market.clip, self._equity
        for i, quantity in enumerate(self._holdings):
            weight = quantity * self._closes[i] / equity if equity > 0.0 else 0.0
            observation[size + i] = min(max(weight, -clip), clip)
        return observation

    def _chosen_weights(self, action: Any, fillable: list[bool]) -> tuple[list[float], list[bool]]:
        """Each asset's weight, and whether to trade it: not where the choice is the one it already has."""
        choices = [index(action)] if len(self._choices) == 1 else self._numbers(action)
        weights, trades = [], []
        for i, choice in enumerate(choices):
            if not 0 <= choice < len(self._position_weights):
                raise UserError(f"Action {action} is not in {self.action_space}.")
            weights.append(self._position_weights[choice])
            trades.append(fillable[i] and choice != self._choices[i])
            if fillable[i]:
                self._choices[i] = choice
        return weights, trades

    def _target_weights(self, action: Any) -> list[float]:
        weights = self._numbers(action)
        lowest = -1.0 if self.rules.allow_short else 0.0
        for i, weight in enumerate(weights):
            if not isfinite(weight):
                raise UserError(f"Action {action} is not finite; a target weight lies between {lowest:g} and 1.")
            weights[i] = min(max(weight, lowest), 1.0)
        return weights

    def _numbers(self, action: Any) -> list[Any]:
        numbers = action.tolist() if isinstance(action, np.ndarray) else list(action)
        if len(numbers) != len(self._holdings):
            raise UserError(f"An action needs a number for each of {self.market.symbols}, but got {action}.")
        return numbers


def _action_space(rules: TradingRules, n_assets: int) -> spaces.Space[Any]:
    if rules.action_mode == "target_weights":
        return spaces.Box(-1.0 if rules.allow_short else 0.0, 1.0, (n_assets,), np.float32)
    n_positions = len(rules.positions)
    return spaces.Discrete(n_positions) if n_assets == 1 else spaces.MultiDiscrete([n_positions] * n_assets)
