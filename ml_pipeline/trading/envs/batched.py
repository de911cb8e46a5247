"""Many trading environments in arrays or tensors; one call of the kernel steps all of them.

N environments, A assets, T bars, W bars in a window, D features per bar.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.seeding import advanced, below, row_generators, within
from ml_pipeline.trading.accounts.array_ops import Bars, Batch, CompiledArrays, NumpyArrays, Tables
from ml_pipeline.trading.accounts.execution import RUIN_FRACTION
from ml_pipeline.trading.accounts.orders import Terms
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.within_bar import Book
from ml_pipeline.trading.envs.actions import action_bounds, action_space
from ml_pipeline.trading.envs.fast import Engine, FastTradingEnv, compiles
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.rewards import LogReturn, Reward

Range = tuple[float, float]

# The position of each draw of an episode in a row's generator, whether or not the draw is needed.
_MARKET, _START, *_RATES = range(1, 5)
_DRAWS_PER_EPISODE = 4


class _Episodes(NamedTuple):
    """The running episode of each account. holdings and choices are (A, N), the others (N,).

    rows, last_rows: the current bar and the last bar of the episode, as rows of the tables.
    choices: the latest discrete choice of each asset.
    generators: see `row_generators`; they draw the next episode.
    """

    rows: Any
    last_rows: Any
    buy_rates: Any
    sell_rates: Any
    cash: Any
    equity: Any
    holdings: Any
    choices: Any
    generators: Any


class BatchedTradingEnv(VectorEnv):
    """N environments like `FastTradingEnv` in one, with the same accounts, observations and rewards.

    market: one market, or several with equal numbers of assets and features; each episode then draws one of them.
    `one_each` splits a market by symbol.
    fee_bps, slippage_bps: each episode draws its own from this range; None: those of `rules`.
    episode_length: as for `FastTradingEnv`; None: an episode begins at the first bar and ends with the market.
    device: None: NumPy arrays. "cpu", "cuda" or "mps": torch tensors on that device, with no copies to the host.
    Actions are then not checked, except on "cpu" for NaN and infinity; NaN holds the position.
    engine: without a device, "plain" is NumPy and "compiled" is machine code, which needs numba; "auto" compiles if
    numba is installed.

    Environment i is seeded seed + i. The market, start, fee and slippage of its k-th episode depend on that seed and k
    alone, so that n environments with seed + i go through the episodes of environments i to i + n - 1 of N, on every
    device. `FastTradingEnv` draws other starts from the same seed.

    Autoreset is SAME_STEP: infos["final_obs"], (N, ...), holds the last observation of each episode that ended, which
    infos["_final_obs"] marks, and "equity" in infos["final_info"], (N,), its equity. Rewards are float64 in arrays and
    float32 in tensors. Each step returns new observations.
    """

    _now: _Episodes

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
        engine: Engine = "auto",
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
        """Concatenate the markets into tables (A, T) and (T, D) on the device."""
        xp = self._xp = _arrays_on(self._device, self._engine)
        n_bars = np.array([market.n_bars for market in markets])
        fills = [market.fill_tables(self.rules.fill_at) for market in markets]
        prices, spreads, fillable = (
            np.concatenate([np.vstack([fill[i], fill[i][-1:]]) for fill in fills]).T for i in range(3)
        )
        self._fillable = None if fillable.all() else xp.array(fillable)
        self._closings = None
        if self.rules.flat_at_close:
            closings = [market.closings(self.rules.fill_at) for market in markets]
            self._closings = xp.array(np.concatenate([np.append(of_one, False) for of_one in closings])[None, :])
        self._tables = Tables(
            fill_prices=xp.array(prices),
            half_spreads=xp.array(spreads if spreads.any() else np.zeros((len(spreads), 1))),
            closes=xp.array(np.concatenate([market.close for market in markets]).T),
            features=xp.array(np.concatenate([market.features for market in markets])),
        )
        self._bars = None
        if self.rules.acts_within_bars:
            of_markets = zip(*(market.bar_tables(self.rules) or () for market in markets), strict=True)
            tables = (np.concatenate([np.vstack([of_one, of_one[-1:]]) for of_one in each]).T for each in of_markets)
            self._bars = Bars(*map(xp.array, tables))
        self._first_rows = xp.array(np.cumsum(n_bars) - n_bars)
        length = self._episode_length
        first, last = self.window - 1, n_bars - 1
        latest = np.full(len(markets), first) if length is None else np.maximum(first, last - length)
        self._n_starts = xp.array(latest - first + 1)
        self._n_steps = xp.array(last - first if length is None else np.minimum(last - first, length))
        self._always = xp.full((len(markets[0].symbols), self.num_envs), True)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in every environment; `seed` is one whole number: environment i is seeded seed + i."""
        super().reset(seed=seed)
        if seed is None and self._begun:
            generators = self._now.generators
        else:
            first = int(self.np_random.integers(2**62)) if seed is None else seed
            generators = self._xp.array(row_generators(first, self.num_envs))
        self._begun = True
        self._now, self._reward_state = self._fresh(generators)
        self._orders, self._filled = (self._xp.full(self._always.shape, 0.0, self._xp.money) for _ in range(2))
        if self._bars is not None:
            self._entries, *self._exits = (self._xp.full(self._always.shape, 0.0, self._xp.money) for _ in range(6))
        return self._xp.observations(*self._seen()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._begun:
            raise UserError("There is no episode yet; call reset() before the first step().")
        xp, now = self._xp, self._now
        weights, may_trade, choices = self._read(actions, now)
        terms = self._terms._replace(buy_rate=now.buy_rates, sell_rate=now.sell_rates)
        accounts: Batch | Book = Batch(now.cash, now.equity, now.holdings, self._orders, self._filled)
        if self._bars is not None:
            accounts = Book(now.holdings, self._entries, self._orders, self._filled, *self._exits)
        if self._closings is None:
            moved = self._advance(weights, may_trade, accounts, terms)
        else:
            moved, choices = self._advance_or_close(weights, may_trade, accounts, terms, choices)
        if isinstance(accounts, Book):
            choices = self._without_exits(self._without_lapsed(choices, accounts), accounts)
        cash, self.costs, equity, margin_called = moved
        rewards, self._reward_state = self.reward.step(xp.ops, self._reward_state, now.equity, equity)
        ruin = RUIN_FRACTION * self.rules.initial_cash
        rows, terminated, truncated, done = xp.outcomes(now.rows, now.last_rows, margin_called, equity, ruin)
        self._now = now._replace(rows=rows, cash=cash, equity=equity, choices=choices)
        observations = xp.observations(*self._seen())
        ended = xp.chosen(done)
        infos: dict[str, Any] = {}
        if len(ended):
            final_info = {"equity": equity + 0.0, "_equity": done}  # a copy: accounts are renewed in place
            infos = {"final_obs": observations, "_final_obs": done, "final_info": final_info, "_final_info": done}
            self._begin_again(ended)
            observations = xp.observe_again(observations, ended, self._seen())
        return observations, rewards if self._device is None else xp.floats(rewards), terminated, truncated, infos

    def get_states(self) -> list[dict[str, Any]]:
        """A state for each environment, for `set_states`, as plain data; empty before the first episode."""
        if not self._begun:
            return [{} for _ in range(self.num_envs)]
        columns = {name: self._xp.to_host(values).T.tolist() for name, values in self._columns().items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def set_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from states of `get_states`; the environment must be made with the same arguments.

        Raises ValueError, KeyError or TypeError for anything else.
        """
        if len(states) != self.num_envs:
            raise ValueError(f"set_states needs one state per environment, {self.num_envs}, but got {len(states)}.")
        self._begun = False
        if any(states):
            self._restore(states, seed=0)

    def continue_from(self, states: Sequence[dict[str, Any]], *, seed: int) -> Any:
        """`set_states` with the states of more or fewer environments: surplus states are ignored, and each further
        environment i begins an episode as after a reset with seed + i.

        Returns the observations of all environments if some began an episode, else None.
        """
        if not any(states):
            return self.reset(seed=seed)[0]
        self._restore(states[: self.num_envs], seed=seed)
        return self._xp.observations(*self._seen()) if len(states) < self.num_envs else None

    def _restore(self, states: Sequence[dict[str, Any]], *, seed: int) -> None:
        """Put the first environments into these states, after a reset of all."""
        self.reset(seed=seed)
        columns = {name: self._xp.to_host(values).copy() for name, values in self._columns().items()}
        for name, values in columns.items():
            first = values[..., : len(states)]
            known = np.array([state[name] for state in states]).T.reshape(first.shape)
            np.copyto(first, known, casting="same_kind")
        self._set_columns({name: self._xp.array(values) for name, values in columns.items()})

    def _columns(self) -> dict[str, Any]:
        """The state that changes from step to step, by name, each (..., N)."""
        reward = {f"reward_{i}": values for i, values in enumerate(self._reward_state)}
        return {**self._now._asdict(), **reward, **({} if self._bars is None else {"entries": self._entries})}

    def _set_columns(self, columns: dict[str, Any]) -> None:
        """Restore the result of `_columns`."""
        self._now = _Episodes(*(columns[name] for name in _Episodes._fields))
        self._reward_state = tuple(columns[f"reward_{i}"] for i in range(len(self._reward_state)))
        if self._bars is not None:
            self._entries = columns["entries"]

    @property
    def device(self) -> str | None:
        """The device of actions and observations; None for NumPy arrays."""
        return self._device

    @property
    def equity(self) -> Any:
        """The equity of each environment, (N,), after the latest step and autoreset."""
        return self._now.equity

    def _fresh(self, generators: Any) -> tuple[_Episodes, tuple[Any, ...]]:
        """New episodes of the environments with these generators, and the state of their reward."""
        xp, n = self._xp, len(generators)

        def draw(k: int) -> Any:
            return xp.mixed(advanced(generators, k))

        drawn = slice(None) if len(self._markets) == 1 else below(len(self._markets), draw(_MARKET))
        rows = self._first_rows[drawn] + self.window - 1 + below(self._n_starts[drawn], draw(_START))
        rates = xp.full((n,), sum(low for low, high in self._ranges if low == high), xp.money)
        for k, (low, high) in zip(_RATES, self._ranges, strict=True):
            if low < high:
                rates = rates + within(low, high, xp.array(draw(k), xp.money))
        cash = xp.full((n,), float(self.rules.initial_cash), xp.money)
        holdings = xp.full((len(self._always), n), 0.0, xp.money)
        choices = xp.to_indices(holdings) + self.rules.positions.index(0)
        last_rows = rows + self._n_steps[drawn]
        following = advanced(generators, _DRAWS_PER_EPISODE)
        fresh = _Episodes(rows, last_rows, rates, rates + self._sell_extra, cash, cash, holdings, choices, following)
        return fresh, self.reward.begin(xp.ops, cash)

    def _begin_again(self, ended: Any) -> None:
        renew = self._xp.renew
        fresh, reward_state = self._fresh(self._xp.renewable(self._now.generators, ended))
        self._now = _Episodes(*(renew(old, ended, new) for old, new in zip(self._now, fresh, strict=True)))
        states = zip(self._reward_state, reward_state, strict=True)
        self._reward_state = tuple(renew(old, ended, new) for old, new in states)
        if self._bars is not None:
            self._entries = renew(self._entries, ended, self._xp.full(fresh.holdings.shape, 0.0, self._xp.money))

    def _advance(self, weights: Any, may_trade: Any, accounts: Batch | Book, terms: Terms) -> tuple[Any, ...]:
        xp, now = self._xp, self._now
        if isinstance(accounts, Batch):
            moved = xp.advance(self._tables, now.rows, weights, may_trade, accounts, terms)
        else:
            moved = xp.advance_within(self._tables, self._bars, now.rows, weights, may_trade, now.cash, accounts, terms)
        return tuple(moved)

    def _without_lapsed(self, choices: Any, book: Book) -> Any:
        """`ActionReader.note_lapsed` for arrays."""
        if self.rules.limit_bps is None:
            return choices
        kept = book.filled != 0.0
        if self._closings is not None:  # closing orders are market orders: none lapses
            kept = kept | self._xp.take(self._closings, self._now.rows)
        return self._xp.to_indices(self._xp.ops.where(kept, choices, self._now.choices))

    def _without_exits(self, choices: Any, book: Book) -> Any:
        """`ActionReader.note_exits` for arrays."""
        left = (book.exited != 0.0) & (book.holdings == 0.0)
        return self._xp.to_indices(self._xp.ops.where(left, self.rules.positions.index(0), choices))

    def _read(self, actions: Any, now: _Episodes) -> tuple[Any, Any, Any]:
        """(weights, whether to trade, choices), each (A, N): `ActionReader.read` for arrays."""
        xp, ops = self._xp, self._xp.ops
        fillable = self._always if self._fillable is None else xp.take(self._fillable, now.rows)
        given = xp.array(actions).reshape(self.num_envs, -1).T
        if len(given) != len(self._always):
            raise UserError(f"Actions need the shape {self.action_space.shape}, but got {np.shape(actions)}.")
        if self._discrete:
            wanted = xp.to_indices(given)
            latest = len(self.rules.positions) - 1
            stepwise = self.rules.action_mode == "buy_hold_sell"
            if self._device is None and (wanted.min() < 0 or wanted.max() > (2 if stepwise else latest)):
                n_choices = 3 if stepwise else latest + 1
                raise self._refusal(wanted, lambda choice: 0 <= choice < n_choices, f"not in 0..{n_choices - 1}")
            if stepwise:
                wanted = ops.least(ops.greatest(now.choices + wanted - 1, 0), latest)
            weights, may_trade, choices = xp.choose(
                wanted, now.choices, fillable, self.rules.positions.index(0), self.rules.leverage
            )
            return weights, may_trade, choices
        lowest, highest = action_bounds(self.rules)
        if not xp.finite(given):
            raise self._refusal(given, isfinite, f"not finite; expected numbers from {lowest:g} to {highest:g}")
        weights = ops.least(ops.greatest(xp.array(given, xp.money), lowest), highest)
        if self.rules.action_threshold:
            fillable = fillable & (abs(weights) >= self.rules.action_threshold)
        return weights, fillable, now.choices

    def _advance_or_close(
        self, weights: Any, may_trade: Any, accounts: Batch | Book, terms: Terms, choices: Any
    ) -> tuple[tuple[Any, ...], Any]:
        """(what `advance` returns, choices), with all positions closed if the fill is the last of a session."""
        xp, now, where = self._xp, self._now, self._xp.ops.where
        closing = xp.take(self._closings, now.rows)[0]
        if self._device is None and not closing.any():
            return self._advance(weights, may_trade, accounts, terms), choices
        fillable = self._always if self._fillable is None else xp.take(self._fillable, now.rows)
        arrays: Any = accounts
        other = type(arrays)(*(values + 0.0 for values in arrays))
        moved = self._advance(weights, may_trade, accounts, terms)
        nothing = xp.full(self._always.shape, 0.0, xp.money)
        closed = self._advance(nothing, fillable, other, terms.closing())
        unchanged = 2 if isinstance(accounts, Batch) else 0
        for values, instead in zip(arrays[unchanged:], other[unchanged:], strict=True):
            values[:] = where(closing, instead, values)
        flat = where(fillable, self.rules.positions.index(0), now.choices)
        choices = xp.to_indices(where(closing, flat, choices))
        return tuple(where(closing, instead, of_all) for of_all, instead in zip(moved, closed, strict=True)), choices

    def _refusal(self, given: Any, allowed: Callable[[float], bool], problem: str) -> UserError:
        """An error about the first of the numbers `given`, (A, N), that is not allowed."""
        asset, env, number = next(
            (asset, env, number)
            for asset, numbers in enumerate(given.tolist())
            for env, number in enumerate(numbers)
            if not allowed(number)
        )
        whose = f" for {self._markets[0].symbols[asset]}" if len(self._markets) == 1 else ""
        return UserError(f"The action of environment {env}{whose} is {number:g}, which is {problem}.")

    def _seen(self) -> tuple[Any, ...]:
        """The arguments of `observations`."""
        now = self._now
        batch = Batch(now.cash, now.equity, now.holdings, self._orders, self._filled)
        return self._tables, now.rows, self.window, batch, self._markets[0].clip


def one_each(market: PreparedMarket) -> list[PreparedMarket]:
    """One market per symbol, each with the symbol's own and the shared features."""
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
        raise UserError(
            "All markets of a batch need the same number of symbols, number of features and clip, but "
            f"(symbols, features, clip) are {sorted(shapes)}."
        )


def _arrays_on(device: str | None, engine: Engine) -> Any:
    if device is not None:
        from ml_pipeline.trading.accounts.tensor_ops import TorchArrays

        return TorchArrays(device)
    return CompiledArrays() if compiles(engine) else NumpyArrays()
