"""The trading environment for training: it keeps cash and holdings, and no history.

A assets, W bars in a window, D features per bar.
"""

from dataclasses import replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.runtime.plain_data import NotPlain
from ml_pipeline.trading.accounts.compiled_kernel import can_compile
from ml_pipeline.trading.accounts.execution import RUIN_FRACTION
from ml_pipeline.trading.accounts.orders import PLAIN_OPS
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.single import BarTables, CompiledAccount, FillTables, PlainAccount
from ml_pipeline.trading.envs.actions import ActionReader
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.rewards import Fill, LogReturn, Reward, keeps_own_values

Engine = Literal["auto", "plain", "compiled"]


class FastTradingEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """Decide at the close of bar t, fill at the open of t+1 (or the close of t), value at the close of t+1.

    Observation: float32 (W * D + A,), the scaled features of the last W bars, oldest first, then the weight of each
    asset in the equity; all within -clip..clip.
    Action: see `TradingRules`. An asset without a bar to fill an order keeps its position. After a stop, the position
    is flat until the next order; the choice of a discrete action is then flat too, so that "long" is a new order.
    Reward: see `rewards`; by default ln(V[t+1] / V[t]) of the equity V after costs.
    With `flat_at_close`, the action before the last fill of a session is not read: all positions are closed, and the
    choices of discrete actions are then flat.
    Ruin and a margin call terminate; the end of the data, or of `episode_length` steps, truncates. The last info of an
    episode has the "equity".

    episode_length: steps per episode, which starts at a random bar (training). None: one pass through all bars
    (evaluation).
    engine: "plain" Python, or "compiled", which needs numba; "auto" compiles if numba is installed.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's class attribute

    def __init__(
        self,
        market: PreparedMarket,
        rules: TradingRules | None = None,
        *,
        window: int = 1,
        episode_length: int | None = None,
        reward: Reward | None = None,
        engine: Engine = "auto",
    ) -> None:
        if market.n_bars < window + 1:
            raise UserError(f"A window of {window} needs {window + 1} bars, but got {market.n_bars}; use more bars.")
        self.market = market
        self.rules = self._first_rules = rules = rules or TradingRules()
        self.window = window
        self.episode_length = episode_length
        self.reward = reward or LogReturn()
        n_assets = len(market.symbols)
        self._row_size = market.features.shape[1]
        self._observation_size = window * self._row_size + n_assets
        self.observation_space = observation_space(self._row_size, n_assets, window=window, clip=market.clip)
        self._actions = ActionReader(rules, market.symbols)
        self.action_space = self._actions.space

        self._always = [True] * n_assets
        tables = self._bind_market()
        self._account = self._account_class(engine)(tables, rules.terms(market.periods_per_year), market.clip)
        self._begin(window - 1)

    def _bind_market(self) -> FillTables:
        """Set the tables that steps read. Pickled environments leave them out, since they may be large."""
        # Plain arrays, still backed by the file of a mapped market: reading a row of a memmap takes five times as long.
        self._features = np.asarray(self.market.features).reshape(-1)
        prices, half_spreads, fillable = self.market.fill_tables(self.rules.fill_at)
        self._fill_prices, self._half_spreads = np.asarray(prices), np.asarray(half_spreads)
        self._fillable = None if fillable.all() else np.asarray(fillable)
        flat = self.rules.flat_at_close
        self._closings = np.asarray(self.market.closings(self.rules.fill_at)) if flat else None
        self._acts_within_bars = self.rules.acts_within_bars
        bars = self.market.bar_tables(self.rules)
        if bars is not None:
            bars = BarTables._make(np.asarray(table) for table in bars)
        return FillTables(self._fill_prices, self._half_spreads, np.asarray(self.market.close), bars)

    def __getstate__(self) -> dict[str, Any]:
        of_market = {"_features", "_fill_prices", "_half_spreads", "_fillable", "_closings"}
        return {name: value for name, value in self.__dict__.items() if name not in of_market}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_first_rules": state["rules"], **state})  # an earlier version had no other rules
        self._account.bind(self._bind_market())

    def meaning(self) -> dict[str, dict[str, Any]]:
        """The meaning of the numbers of an "observation" and an "action", for JSON.

        An observation is `window` times the `features`, oldest bar first, then the weight of each of the `symbols`.
        """
        market = self.market
        observation = {
            "features": list(market.feature_names),
            "window": self.window,
            "symbols": list(market.symbols),
            "order": "features of each bar of the window, oldest first; then the weight of each symbol in the equity",
            "scale": f"standardized by the training split, clipped to -{market.clip:g}..{market.clip:g}",
        }
        return {"observation": observation, "action": {"symbols": list(market.symbols), **self._actions.meaning()}}

    def get_plain_state(self) -> dict[str, Any]:
        """The state that changes from step to step, without market and settings. Raises NotPlain if a user's reward has
        attributes, which might change too."""
        if keeps_own_values(self.reward):
            raise NotPlain(f"a {type(self.reward).__name__} with attributes")
        changed = {} if self.rules is self._first_rules else {"fee_bps": self.fee_bps}
        return {
            **changed,
            "bar": self._bar,
            "last_bar": self._last_bar,
            "ruined": self._ruined,
            "account": self._account.state(),
            "actions": self._actions.state(),
            "reward": self._reward_state,
            "generator": self._np_random,
            "seed": self._np_random_seed,
        }

    def set_plain_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_plain_state`; the environment must be made with the same arguments."""
        if "fee_bps" in state or self.rules is not self._first_rules:
            self.fee_bps = state.get("fee_bps", self._first_rules.fee_bps)
        self._bar, self._last_bar, self._ruined = state["bar"], state["last_bar"], state["ruined"]
        self._account.set_state(state["account"])
        self._actions.set_state(state["actions"])
        self._reward_state = state["reward"]
        self._np_random, self._np_random_seed = state["generator"], state["seed"]

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

    @property
    def fee_bps(self) -> float:
        """The fee of `rules`. If it is set, it applies from the next step on; `sell_fee_bps` is unchanged.

        Raises UserError if it is out of range.
        """
        return self.rules.fee_bps

    @fee_bps.setter
    def fee_bps(self, fee_bps: float) -> None:
        self.rules = replace(self.rules, fee_bps=fee_bps)
        self._account.set_terms(self.rules.terms(self.market.periods_per_year))

    @property
    def equity(self) -> float:
        """The equity at the close of the current bar, after costs."""
        return float(self._account.equity)

    def _begin(self, bar: int) -> None:
        self._bar = bar
        self._last_bar = self.market.n_bars - 1
        if self.episode_length is not None:
            self._last_bar = min(self._last_bar, bar + self.episode_length)
        self._ruin = RUIN_FRACTION * self.rules.initial_cash
        self._ruined = False
        self._account.begin(bar, float(self.rules.initial_cash))
        self._actions.begin()
        self._reward_state = self.reward.begin(PLAIN_OPS, self._account.equity)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        bar, account = self._bar, self._account
        if bar >= self._last_bar or self._ruined:
            raise gymnasium.error.ResetNeeded("The episode is over; call reset() before the next step().")
        fillable = self._always if self._fillable is None else self._fillable[bar].tolist()
        closing = self._closings is not None and self._closings[bar]
        weights, trades = self._actions.close(fillable) if closing else self._actions.read(action, fillable)
        before = account.equity
        if closing:
            account.step(bar, weights, trades, closing=True)
        else:
            account.step(bar, weights, trades)
        if self._acts_within_bars:
            if self.rules.limit_bps is not None:
                self._actions.note_lapsed(account.filled)
            self._actions.note_exits(account.exited, account.holdings)
        if self.reward.reads_account:
            seen = (account, self._fills(bar), self._bar_closed(bar + 1))
            reward, self._reward_state = self.reward.step_account(self._reward_state, before, *seen)
        else:
            reward, self._reward_state = self.reward.step(PLAIN_OPS, self._reward_state, before, account.equity)
        self._bar = bar = bar + 1
        self._ruined = ruined = account.margin_called or account.equity <= self._ruin
        truncated = bar >= self._last_bar and not ruined
        return self._observe(), reward, ruined, truncated, {"equity": self.equity} if ruined or truncated else {}

    def _fills(self, bar: int) -> list[Fill]:
        """The fills of the step decided at `bar`, without costs."""
        account, prices = self._account, self._fill_prices[bar].tolist()
        fills = [(account.filled, account.fill_prices if self._acts_within_bars else prices)]
        if self._acts_within_bars:
            fills.append((account.exited, account.exit_prices))
        return [
            Fill(i, float(n), float(price))
            for units, at in fills
            for i, (n, price) in enumerate(zip(units, at, strict=True))
            if n
        ]

    def _bar_closed(self, bar: int) -> dict[str, Any]:
        """The symbols, and the columns of a bar that are known at its close."""
        tables = {name: getattr(self.market, name, None) for name in ("open", "high", "low", "close")}
        return {
            "symbols": self.market.symbols,
            **{name: table[bar] for name, table in tables.items() if table is not None},
        }

    def _observe(self) -> NDArray[np.float32]:
        stop = (self._bar + 1) * self._row_size
        size = self.window * self._row_size
        observation = np.empty(self._observation_size, dtype=np.float32)
        observation[:size] = self._features[stop - size : stop]
        observation[size:] = self._account.weights()
        return observation

    def _account_class(self, engine: Engine) -> type[PlainAccount] | type[CompiledAccount]:
        return CompiledAccount if compiles(engine) else PlainAccount


def observation_space(n_features: int, n_assets: int, *, window: int, clip: float) -> spaces.Space[Any]:
    """The observation space of `n_assets` with `n_features` per bar: the features of the window, then the weights."""
    return spaces.Box(-clip, clip, (window * n_features + n_assets,), np.float32)


def compiles(engine: Engine) -> bool:
    """Whether this engine is machine code on this machine. Raises UserError if "compiled" is impossible."""
    if engine == "compiled" and not can_compile():
        raise UserError(f'engine "compiled" needs numba; {install_extra("fast")}, or use "plain" or "auto".')
    return engine != "plain" and can_compile()
