"""Many trading environments as arrays or tensors: one call of the kernel steps them all.

N environments, A assets, T bars, W bars of window, D features of a bar.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.actions import action_space
from ml_pipeline.trading.array_ops import Batch, CompiledArrays, NumpyArrays, Tables
from ml_pipeline.trading.compiled import can_compile
from ml_pipeline.trading.execution import RUIN_FRACTION
from ml_pipeline.trading.fast_env import FastTradingEnv
from ml_pipeline.trading.prepared_market import PreparedMarket
from ml_pipeline.trading.rewards import LogReturn, Reward
from ml_pipeline.trading.rules import TradingRules

Range = tuple[float, float]


class BatchedTradingEnv(VectorEnv):
    """N times `FastTradingEnv` in one: the same accounts, observations and rewards, for all at once.

    market: one, or several of as many assets and features, of which each episode draws one (`one_each` makes them of a
    market's symbols). fee_bps, slippage_bps: a range from which each episode draws its own; None is that of `rules`.
    episode_length: as for `FastTradingEnv`; None begins at the first bar and ends with the market.
    device: None gives NumPy arrays; "cpu", "cuda" or "mps" takes and gives torch tensors that live there, with nothing
    copied to the host. There an action that is not finite is not looked for; it holds.

    engine: without a device, "plain" is NumPy; "compiled" shares the accounts among the cores, which needs numba, and
    pays for many assets on cores that are free.

    Autoreset is SAME_STEP; infos["final_obs"], (N, ...), holds what ended an episode where infos["_final_obs"] is True.
    Rewards are float64 as arrays, float32 as tensors; observations are new at each step.
    """

    def __init__(
        self,
        market: PreparedMarket | Sequence[PreparedMarket],
        num_envs: int,
        rules: TradingRules | None = None,
        *,
        window: int = 1,
        episode_length: int | None = None,
        reward: Reward | None = None,
        fee_bps: Range | None = None,
        slippage_bps: Range | None = None,
        device: str | None = None,
        engine: Literal["plain", "compiled"] = "plain",
    ) -> None:
        markets = [market] if isinstance(market, PreparedMarket) else list(market)
        _check_alike(markets)
        self.rules = rules = rules or TradingRules()
        single = [FastTradingEnv(m, rules, window=window, engine="plain") for m in markets]  # checks the bars of each
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = single[0].observation_space
        self.single_action_space = action_space(rules, len(markets[0].symbols))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.window = window
        self.reward = reward or LogReturn()
        self._markets = markets
        self._device = device
        self._engine = engine
        self._episode_length = episode_length
        self._ranges = [
            tuple(bps / 10_000 for bps in given or (usual, usual))
            for given, usual in ((fee_bps, rules.fee_bps), (slippage_bps, rules.slippage_bps))
        ]
        for name, given in (("fee_bps", fee_bps), ("slippage_bps", slippage_bps)):
            if given is not None and not 0 <= given[0] <= given[1] <= 1_000:
                raise UserError(f"{name} must be a range from 0 to 1000 basis points, but got {given}.")
        self._sell_extra = 0.0 if rules.sell_fee_bps is None else (rules.sell_fee_bps - rules.fee_bps) / 10_000
        self._terms = rules.terms(markets[0].periods_per_year)
        self._discrete = rules.action_mode in {"discrete", "buy_hold_sell"}
        self._load(markets)
        self._begun = False

    def _load(self, markets: list[PreparedMarket]) -> None:
        """Put the markets one behind the other into tables (A, T) and (T, D) on the device."""
        xp = self._xp = _arrays_on(self._device, self._engine)
        n_bars = np.array([market.n_bars for market in markets])
        fills = [market.fill_tables(self.rules.fill_at) for market in markets]
        prices, spreads, fillable = (
            np.concatenate([np.vstack([fill[i], fill[i][-1:]]) for fill in fills]).T for i in range(3)
        )
        self._fillable = None if fillable.all() else xp.array(fillable)
        self._tables = Tables(
            fill_prices=xp.array(prices),
            half_spreads=xp.array(spreads if spreads.any() else np.zeros((len(spreads), 1))),
            closes=xp.array(np.concatenate([market.close for market in markets]).T),
            features=xp.array(np.concatenate([market.features for market in markets])),
        )
        self._first_rows = xp.array(np.cumsum(n_bars) - n_bars)
        length = self._episode_length
        first, last = self.window - 1, n_bars - 1
        latest = np.full(len(markets), first) if length is None else np.maximum(first, last - length)
        self._n_starts = xp.array(latest - first + 1)
        self._n_steps = xp.array(last - first if length is None else np.minimum(last - first, length))
        weights = [position / len(markets[0].symbols) for position in self.rules.positions]
        self._position_weights = xp.array(np.array(weights))
        self._always = xp.full((len(markets[0].symbols), self.num_envs), True)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin every environment anew; `seed`, a whole number, seeds all of them together."""
        super().reset(seed=seed)
        if seed is not None or not self._begun:
            self._xp.seed(self.np_random)
        self._begun = True
        (
            self._rows,
            self._last_rows,
            self._fees,
            self._slippage,
            self._cash,
            self._equity,
            self._holdings,
            self._choices,
            self._reward_state,
        ) = self._fresh()
        self._orders, self._filled = (self._xp.full(self._always.shape, 0.0, self._xp.money) for _ in range(2))
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._begun:
            raise UserError("The environments have not begun; call reset() before the first step().")
        xp, rows, ops = self._xp, self._rows, self._xp.ops
        fillable = self._always if self._fillable is None else xp.take(self._fillable, rows)
        weights, may_trade = self._read(actions, fillable)
        rates = self._fees + self._slippage
        terms = self._terms._replace(buy_rate=rates, sell_rate=rates + self._sell_extra)
        before = self._equity
        self._cash, self.costs, self._equity = xp.advance(self._tables, rows, weights, may_trade, self._batch(), terms)
        rewards, self._reward_state = self.reward.step(ops, self._reward_state, before, self._equity)
        self._rows = rows = rows + 1
        terminated = self._equity <= RUIN_FRACTION * self.rules.initial_cash
        truncated = (rows >= self._last_rows) & ~terminated
        observations = self._observe()
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if xp.any(done):
            infos = {"final_obs": observations, "_final_obs": done}
            self._begin_again(done)
            observations = self._observe()
        return observations, rewards if self._device is None else xp.floats(rewards), terminated, truncated, infos

    @property
    def equity(self) -> Any:
        """(N,), after the latest step and autoreset."""
        return self._equity

    def _fresh(self) -> tuple[Any, ...]:
        """What a new episode begins with, drawn for every environment."""
        xp, n = self._xp, self.num_envs
        drawn = xp.to_indices(xp.random(n) * len(self._markets))
        start = xp.to_indices(xp.random(n) * self._n_starts[drawn])
        rows = self._first_rows[drawn] + self.window - 1 + start
        fees, slippage = (low + xp.random(n) * (high - low) for low, high in self._ranges)
        cash = xp.full((n,), float(self.rules.initial_cash), xp.money)
        holdings = xp.full(self._always.shape, 0.0, xp.money)
        choices = xp.to_indices(holdings) + self.rules.positions.index(0)
        reward_state = self.reward.begin(xp.ops, cash)
        return rows, rows + self._n_steps[drawn], fees, slippage, cash, cash, holdings, choices, reward_state

    def _begin_again(self, done: Any) -> None:
        where = self._xp.ops.where
        fresh = self._fresh()
        names = ("_rows", "_last_rows", "_fees", "_slippage", "_cash", "_equity", "_holdings", "_choices")
        for name, value in zip(names, fresh, strict=False):
            setattr(self, name, where(done, value, getattr(self, name)))
        states = zip(fresh[-1], self._reward_state, strict=True)
        self._reward_state = tuple(where(done, new, old) for new, old in states)

    def _read(self, actions: Any, fillable: Any) -> tuple[Any, Any]:
        """(weights, whether to trade), each (A, N): what `ActionReader` reads, of arrays."""
        xp, ops = self._xp, self._xp.ops
        given = xp.array(actions).reshape(self.num_envs, -1).T
        if len(given) != len(self._holdings):
            raise UserError(f"Actions need the shape {self.action_space.shape}, but got {np.shape(actions)}.")
        if self._discrete:
            wanted = xp.to_indices(given)
            highest = len(self.rules.positions) - 1
            stepwise = self.rules.action_mode == "buy_hold_sell"
            if self._device is None and (wanted.min() < 0 or wanted.max() > (2 if stepwise else highest)):
                raise UserError(f"Actions {actions} are not in {self.action_space}.")
            if stepwise:
                wanted = ops.least(ops.greatest(self._choices + wanted - 1, 0), highest)
            may_trade = fillable & (wanted != self._choices)
            self._choices = ops.where(may_trade, wanted, self._choices)
            return self._position_weights[wanted], may_trade
        if not xp.finite(given):
            raise UserError(f"Actions {actions} are not finite.")
        lowest = -1.0 if self.rules.allow_short or self.rules.action_mode == "trade" else 0.0
        weights = ops.least(ops.greatest(xp.array(given, xp.money), lowest), 1.0)
        if self.rules.action_threshold:
            fillable = fillable & (abs(weights) >= self.rules.action_threshold)
        return weights, fillable

    def _batch(self) -> Batch:
        return Batch(self._cash, self._equity, self._holdings, self._orders, self._filled)

    def _observe(self) -> Any:
        clip = self._markets[0].clip
        return self._xp.observations(self._tables, self._rows, self.window, self._batch(), clip)


def one_each(market: PreparedMarket) -> list[PreparedMarket]:
    """A market for each symbol, with the features of that symbol and those of time.

    Raises UserError where the features of the symbols cannot be told apart.
    """
    n_assets = len(market.symbols)
    own = market.n_asset_features
    shared = np.arange(n_assets * own, market.features.shape[1])
    return [
        replace(
            market.assets(np.array([i])),
            features=market.features[:, np.concatenate([np.arange(i * own, (i + 1) * own), shared])],
        )
        for i in range(n_assets)
    ]


def _check_alike(markets: list[PreparedMarket]) -> None:
    if not markets:
        raise UserError("A batch needs at least one market, but got none.")
    shapes = {(len(m.symbols), m.features.shape[1], m.clip) for m in markets}
    if len(shapes) > 1:
        raise UserError(f"Markets of one batch need as many symbols and features each, but have {sorted(shapes)}.")


def _arrays_on(device: str | None, engine: str) -> Any:
    if device is not None:
        from ml_pipeline.trading.tensor_ops import TorchArrays

        return TorchArrays(device)
    if engine == "compiled" and not can_compile():
        raise UserError('engine "compiled" needs numba; install ml-pipeline[fast], or take "plain".')
    return CompiledArrays() if engine == "compiled" else NumpyArrays()
