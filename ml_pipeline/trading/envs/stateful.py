"""The trading environment to judge with: the accounts of `FastTradingEnv`, and the whole ledger besides."""

from collections import Counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.accounts.account import WatchedAccount
from ml_pipeline.trading.accounts.ledger import Ledger, Trade, trades_of
from ml_pipeline.trading.envs.fast import Engine, FastTradingEnv


class StatefulTradingEnv(FastTradingEnv):
    """`FastTradingEnv` that remembers every bar since its reset.

    `info` has equity, cash, costs paid so far, and in "limits" the names of those that bound in the step.
    limit_counts: how often each did since the reset.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's class attribute
    _account: WatchedAccount

    def __init__(self, *args: Any, render_mode: Literal["rgb_array"] | None = None, **settings: Any) -> None:
        """As `FastTradingEnv`; with render_mode "rgb_array", `render` gives a picture of the run so far."""
        super().__init__(*args, **settings)
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        self._costs_paid = 0.0
        self.limit_counts: Counter[str] = Counter()
        self._bars: list[int] = []
        self._accounts: list[tuple[float, float, float]] = []  # equity, cash, costs paid
        self._assets: list[tuple[list[float], ...]] = []  # closes, positions, filled, fill prices
        self._remember(self._account.closes)
        return observation, self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        self._costs_paid += self._account.costs
        self.limit_counts.update(self._account.bound)
        self._remember(self._fill_prices[self._bar - 1].tolist())
        return observation, reward, terminated, truncated, self._info()

    def ledger(self) -> Ledger:
        """Columns as `ledger.py` names them, one row for each bar since the reset, the bar of the reset first."""
        equity, cash, costs_paid = np.array(self._accounts, dtype=np.float64).T
        table: Ledger = {
            "time": self.market.times[self._bars],
            "equity": equity,
            "cash": cash,
            "costs_paid": costs_paid,
        }
        closes, positions, filled, fill_prices = np.array(self._assets, dtype=np.float64).transpose(1, 0, 2)
        spreads = self._half_spreads[[0, *self._bars[:-1]]]
        for i, symbol in enumerate(self.market.symbols):
            table[f"close_{symbol}"] = _without_unlisted(closes[:, i])
            table[f"position_{symbol}"] = positions[:, i]
            table[f"filled_{symbol}"] = filled[:, i]
            table[f"fill_price_{symbol}"] = _without_unlisted(fill_prices[:, i])
            if self.market.half_spread is not None:
                table[f"half_spread_{symbol}"] = spreads[:, i]
        return table

    def render(self) -> NDArray[np.uint8] | None:
        """uint8 (height, width, 3): closes, positions and equity since the reset; None without a render mode."""
        if self.render_mode is None:
            return None
        from ml_pipeline.trading.envs.picture import run_picture

        return run_picture(self.ledger())

    @property
    def trades(self) -> list[Trade]:
        """Every trade since the reset, the open ones valued at the last close."""
        return trades_of(self.ledger())

    def _remember(self, fill_prices: list[float]) -> None:
        self._bars.append(self._bar)
        account = self._account
        self._accounts.append((account.equity, account.cash, self._costs_paid))
        self._assets.append((account.closes, list(account.holdings), list(account.filled), fill_prices))

    def _info(self) -> dict[str, Any]:
        account = self._account
        limits = tuple(account.bound)
        return {"equity": account.equity, "cash": account.cash, "costs_paid": self._costs_paid, "limits": limits}

    def _account_class(self, engine: Engine) -> type[WatchedAccount]:
        return WatchedAccount


def _without_unlisted(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(prices > 0, prices, np.nan)
