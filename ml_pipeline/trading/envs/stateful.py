"""The trading environment for evaluation: the accounts of `FastTradingEnv`, and a ledger of every bar."""

from collections import Counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes
from ml_pipeline.trading.accounts.ledger import Ledger, LedgerRecorder, LedgerRow, symbols_of
from ml_pipeline.trading.accounts.single import LimitTrackingAccount
from ml_pipeline.trading.accounts.trades import Trade, costs_of, trades_of
from ml_pipeline.trading.envs.fast import Engine, FastTradingEnv
from ml_pipeline.trading.market.data import FloatArray


def render_ledger(ledger: Ledger) -> NDArray[np.uint8]:
    """Closes over their first close, positions over equity, and equity, as uint8 (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    above, middle, below = figure.subplots(3, 1, sharex=True)
    equity = np.maximum(ledger["equity"], 1e-12)
    for symbol in symbols_of(ledger):
        close = ledger[f"close_{symbol}"]
        listed = np.flatnonzero(~np.isnan(close))
        first = close[listed[0]] if listed.size else 1.0
        above.plot(ledger["time"], close / first, linewidth=1, label=symbol)
        middle.plot(ledger["time"], ledger[f"position_{symbol}"] * np.nan_to_num(close) / equity, linewidth=1)
    below.plot(ledger["time"], ledger["equity"], color=AGENT_COLOR, linewidth=1.2)
    for axes, title in ((above, "close / first close"), (middle, "position / equity"), (below, "equity")):
        axes.set_ylabel(title)
        style_axes(axes)
    if len(symbols_of(ledger)) <= 8:
        above.legend(frameon=False, ncols=8, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    figure.autofmt_xdate()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


class StatefulTradingEnv(FastTradingEnv):
    """`FastTradingEnv` with a ledger since the reset.

    `info` has "equity", "cash", "costs_paid" (since the reset) and "limits": the names of the limits that were binding
    in the step. limit_counts: how often each was binding since the reset.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's class attribute
    _account: LimitTrackingAccount

    def __init__(self, *args: Any, render_mode: Literal["rgb_array"] | None = None, **settings: Any) -> None:
        """As `FastTradingEnv`. With render_mode "rgb_array", `render` draws the run since the reset."""
        super().__init__(*args, **settings)
        self.render_mode = render_mode

    def get_plain_state(self) -> dict[str, Any]:
        """As `FastTradingEnv.get_plain_state`, with the ledger."""
        has_begun = hasattr(self, "_recorder")
        own = {"ledger": self._recorder.ledger(), "limit_counts": dict(self.limit_counts)} if has_begun else {}
        return {**super().get_plain_state(), **own}

    def set_plain_state(self, state: dict[str, Any]) -> None:
        super().set_plain_state(state)
        if "ledger" in state:
            self._recorder = LedgerRecorder.from_ledger(state["ledger"])
            self.limit_counts: Counter[str] = Counter(state["limit_counts"])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        self.limit_counts = Counter()
        self._recorder = LedgerRecorder(
            self.market.symbols,
            quotes=self.market.half_spread is not None,
            exits=self.rules.acts_within_bars,
            by_day=self.rules.financing_bps_per_year is not None,
        )
        self._record(self._account.closes, self._half_spreads[0])  # nothing is filled yet: any prices will do
        return observation, self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        bar = self._bar
        observation, reward, terminated, truncated, _ = super().step(action)
        self.limit_counts.update(self._account.binding_limits)
        prices = self._account.fill_prices if self._recorder.exits else self._fill_prices[bar].tolist()
        self._record(prices, self._half_spreads[bar])
        return observation, reward, terminated, truncated, self._info()

    def ledger(self) -> Ledger:
        """The ledger with one row per bar; row 0 is the bar of the reset."""
        return self._recorder.ledger()

    def render(self) -> NDArray[np.uint8] | None:
        """Closes, positions and equity since the reset, uint8 (height, width, 3); None without a render mode."""
        if self.render_mode is None:
            return None

        return render_ledger(self.ledger())

    @property
    def trades(self) -> list[Trade]:
        """Every trade since the reset; open trades are valued at the last close."""
        ledger = self.ledger()
        return trades_of(ledger, costs_of(ledger, self.rules, self.market.periods_per_year))

    def _record(self, fill_prices: list[float], half_spreads: FloatArray) -> None:
        account = self._account
        row = LedgerRow(
            time=self.market.times[self._bar],
            equity=account.equity,
            cash=account.cash,
            costs=account.costs,
            closes=account.closes,
            positions=account.holdings,
            filled=account.filled,
            fill_prices=fill_prices,
            half_spreads=half_spreads.tolist() if self._recorder.quotes else None,
            exited=account.exited if self._recorder.exits else None,
            exit_prices=account.exit_prices if self._recorder.exits else None,
            interest_days=account.days if self._recorder.by_day else None,
        )
        self._recorder.append(row)

    def _info(self) -> dict[str, Any]:
        account, costs_paid = self._account, self._recorder.costs_paid
        limits = tuple(account.binding_limits)
        return {"equity": account.equity, "cash": account.cash, "costs_paid": costs_paid, "limits": limits}

    def _account_class(self, engine: Engine) -> type[LimitTrackingAccount]:
        return LimitTrackingAccount
