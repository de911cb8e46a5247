"""The backtest's environment and account, in which chosen orders end as they did at the broker.

T bars, A assets. Row t of a table is for orders decided at bar t, as in `FillTables`. Without `RealizedFills` the
environment equals `StatefulTradingEnv`, bit for bit.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.orders import Overrides, fill_cost_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.single import FillTables, LimitTrackingAccount, PlainAccount
from ml_pipeline.trading.envs.fast import Engine, FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import hold_action
from ml_pipeline.trading.market.data import FloatArray

# The margin of an account that may borrow and is never called while it has equity.
_NO_MAINTENANCE = 1e-300


@dataclass(eq=False)
class RealizedFills:
    """How the orders of a session ended, by the bar of their decision.

    skipped: bool (T - 1,), no decision was made. blocked: bool (T - 1, A), the order was not filled. closing: bool
    (T - 1,), all positions were closed instead of a decision. prices, quantities, shares, cost_rates: float64
    (T - 1, A), of the fills; quantities are signed, shares the part of the backtest's own fill that is added to them,
    costs a fraction of the value traded, NaN means as assumed. exits, exit_shares, exit_prices, exit_cost_rates: the
    same of exits within the bar. charges: float64 (T - 1,), money charged in addition to what is assumed. kept, added:
    float64 (T - 1, A), before the orders of the bar, a position is multiplied by `kept` and increased by `added`.
    uncalled: bool (T - 1,), the broker made no margin call.
    """

    skipped: NDArray[np.bool_]
    blocked: NDArray[np.bool_]
    closing: NDArray[np.bool_]
    prices: FloatArray
    quantities: FloatArray
    shares: FloatArray
    cost_rates: FloatArray
    exits: FloatArray
    exit_shares: FloatArray
    exit_prices: FloatArray
    exit_cost_rates: FloatArray
    charges: FloatArray
    kept: FloatArray
    added: FloatArray
    uncalled: NDArray[np.bool_]

    @classmethod
    def nothing(cls, n_bars: int, n_assets: int) -> "RealizedFills":
        """No deviation: every order is filled as assumed."""
        rows, table = n_bars - 1, (n_bars - 1, n_assets)
        return cls(
            skipped=np.zeros(rows, dtype=bool),
            blocked=np.zeros(table, dtype=bool),
            closing=np.zeros(rows, dtype=bool),
            prices=np.full(table, np.nan),
            quantities=np.full(table, np.nan),
            shares=np.zeros(table),
            cost_rates=np.full(table, np.nan),
            exits=np.full(table, np.nan),
            exit_shares=np.zeros(table),
            exit_prices=np.full(table, np.nan),
            exit_cost_rates=np.full(table, np.nan),
            charges=np.zeros(rows),
            kept=np.ones(table),
            added=np.zeros(table),
            uncalled=np.zeros(rows, dtype=bool),
        )

    def held(self, bar: int, holdings: list[float]) -> list[float]:
        """The positions after adjustments at this bar, (A,)."""
        kept, added = self.kept[bar].tolist(), self.added[bar].tolist()
        return [part * had + more for part, had, more in zip(kept, holdings, added, strict=True)]


class ReplayAccount(PlainAccount):
    """An account of the kernel in which some orders end as they did at the broker.

    flows: (T - 1,), money that came in or went out after the orders of each bar.
    """

    binding_limits: tuple[str, ...] = ()  # not tracked
    realized: RealizedFills | None = None
    flows: FloatArray | None = None

    def step(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool = False) -> None:
        self._trade(bar, weights, may_trade, closing=closing)
        if self.flows is not None and (flow := float(self.flows[bar])):
            self.cash += flow
            self.equity += flow

    def _trade(self, bar: int, weights: list[float], may_trade: list[bool], *, closing: bool) -> None:
        realized = self.realized
        if realized is None:
            super().step(bar, weights, may_trade, closing=closing)
            return
        tables = (realized.exits, realized.exit_cost_rates, realized.exit_prices)
        exits = Overrides(*(table[bar].tolist() for table in tables))
        exits = exits._replace(shares=realized.exit_shares[bar].tolist())
        tables = (realized.quantities, realized.cost_rates, realized.prices)
        fills = Overrides(*(table[bar].tolist() for table in tables))
        self.overrides = fills._replace(exits=exits, shares=realized.shares[bar].tolist())
        self.holdings[:] = realized.held(bar, self.holdings)
        both = self._terms, self._closing_terms
        if realized.uncalled[bar]:
            self._terms, self._closing_terms = (terms._replace(maintenance=_NO_MAINTENANCE) for terms in both)
        super().step(bar, weights, may_trade, closing=closing)
        self._terms, self._closing_terms = both
        charge = float(realized.charges[bar])
        self.cash -= charge
        self.costs += charge
        self.equity -= charge

    def sized(
        self, weights: list[float], trades: list[bool], prices: list[float], half_spreads: list[float], *, closing: bool
    ) -> list[float]:
        """The signed quantities that reach the weights at these prices, as far as cash pays for them, (A,)."""
        terms = self._closing_terms if closing else self._terms
        ordered, filled = [0.0] * len(prices), [0.0] * len(prices)
        may_trade = [bool(trade and price > 0.0) for trade, price in zip(trades, prices, strict=True)]
        equity = PLAIN.size_orders(weights, may_trade, self.cash, self.holdings, prices, terms, ordered)
        if closing:
            return ordered
        PLAIN.fill_orders(ordered, self.cash, equity, prices, half_spreads, terms, filled)
        return filled

    def gains(self, bar: int) -> FloatArray:
        """The gains of the last step's orders, decided at `bar`, and exits, up to its close, after costs, (A,)."""
        fill_prices = self._fill_prices[bar].tolist() if self._bars is None else self.fill_prices
        gains = self._gains(bar, self.filled, fill_prices, self.overrides)
        exits = None if self.overrides is None else self.overrides.exits
        return gains + self._gains(bar, self.exited, self.exit_prices, exits)

    def _gains(self, bar: int, quantities: list[float], prices: list[float], overrides: Overrides | None) -> FloatArray:
        gains = []
        for i, (quantity, price, close) in enumerate(zip(quantities, prices, self.closes, strict=True)):
            cost_rate = np.nan if overrides is None else overrides.cost_rates[i]
            if not quantity:
                gains.append(0.0)
                continue
            if np.isnan(cost_rate):
                half_spread = 0.0 if self._half_spreads is None else float(self._half_spreads[bar, i])
                costs = fill_cost_of(quantity, price, half_spread, self._terms) + self._terms.fixed_fee
            else:
                costs = abs(quantity) * price * cost_rate
            gains.append(quantity * (close - price) - costs)
        return np.array(gains)


class BeginWith(NamedTuple):
    """The account when the session took it over."""

    cash: float
    equity: float
    holdings: tuple[float, ...]


class ReplayEnv(StatefulTradingEnv):
    """A `StatefulTradingEnv` that begins at `first_bar` of its market, and whose orders end as in `realized`.

    closes_at_end, days_at_end: from the calendar, about the bar after the last one: whether the last order is for the
    last fill of a market session, and the days of interest at the last close. None: infer it from the bars.
    begin_with: None: cash only. flows: see `ReplayAccount`.
    """

    _account: ReplayAccount  # type: ignore[assignment]  # it tracks no limits

    def __init__(
        self,
        market: PreparedMarket,
        rules: TradingRules,
        *,
        window: int,
        first_bar: int,
        realized: RealizedFills | None = None,
        closes_at_end: bool | None = None,
        days_at_end: float | None = None,
        begin_with: BeginWith | None = None,
        flows: FloatArray | None = None,
    ) -> None:
        self._first_bar = first_bar
        self._realized = realized
        self._closes_at_end, self._days_at_end = closes_at_end, days_at_end
        self._begin_with = begin_with
        super().__init__(market, rules, window=window)
        self._account.realized = realized
        self._account.flows = flows
        self._hold = hold_action(rules, len(market.symbols))

    def _bind_market(self) -> FillTables:
        tables, realized = super()._bind_market(), self._realized
        can_fill = self.market.fill_tables(self.rules.fill_at)[2]
        self._fillable = (
            np.array(can_fill) if realized is None else can_fill & ~realized.blocked & ~realized.skipped[:, None]
        )
        closings = np.zeros(len(can_fill), dtype=bool) if self._closings is None else np.array(self._closings)
        if self._closings is not None and self._closes_at_end is not None:
            closings[-1] = self._closes_at_end
        self._closings = closings
        if self._days_at_end is not None and tables.bars is not None:
            days = np.array(tables.bars.days)
            days[-1] = self._days_at_end
            tables = tables._replace(bars=tables.bars._replace(days=days))
        self._days_of_bars = None if tables.bars is None else tables.bars.days
        if realized is not None:
            self._closings = (closings & ~realized.skipped) | realized.closing
            prices = np.where(np.isnan(realized.prices), tables.prices, realized.prices)
            self._fill_prices = prices
            tables = tables._replace(prices=prices)
        return tables

    def _begin(self, bar: int) -> None:
        super()._begin(self._first_bar)
        if self._begin_with is not None:
            cash, equity, holdings = self._begin_with
            self.set_account(cash=cash, equity=equity, holdings=[*holdings])

    def _record(self, fill_prices: list[float], half_spreads: FloatArray) -> None:
        if self._bar == self._first_bar:  # an evaluation writes those of its first window
            half_spreads = self._half_spreads[max(0, self._first_bar - self.window + 1)]
        super()._record(fill_prices, half_spreads)

    @property
    def interest_days(self) -> FloatArray:
        """The days of interest charged at the close of each bar of the market, (T,), by the account's tables."""
        days = self._days_of_bars
        return np.ones(self.market.n_bars) if days is None else np.concatenate([[0.0], days[:, 0]])

    @property
    def bar(self) -> int:
        """The bar of the last observation, counted from the market's first one."""
        return self._bar

    @property
    def outcome(self) -> list[tuple[float, float, int]]:
        """(quantity filled, quantity exited, choice) of each asset in the last step."""
        return list(zip(self._account.filled, self._account.exited, self._actions.state(), strict=True))

    @property
    def account(self) -> ReplayAccount:
        return self._account

    @property
    def observation(self) -> NDArray[np.float32]:
        """The observation of the last `step`."""
        return self._observe()

    def take(self, action: Any) -> tuple[NDArray[np.float32], bool]:
        """Take a step. Returns (observation, whether the episode is over)."""
        observation, _, terminated, truncated, _ = self.step(action)
        return observation, terminated or truncated

    def can_read(self, action: Any) -> bool:
        """Whether the rules can execute the action; changes nothing."""
        choices = list(self._actions.state())
        try:
            self._actions.read(action, [True] * len(choices))
        except UserError:
            return False
        finally:
            self._actions.set_state(choices)
        return True

    def sized_at_close(self, action: Any) -> list[float]:
        """The signed quantities that a session orders here if the broker takes quantities, before rounding, (A,)."""
        choices, every = list(self._actions.state()), [True] * len(self.market.symbols)
        closing = bool(self._tables()[1][self._bar])
        weights, trades = self._actions.close(every) if closing else self._actions.read(action, every)
        self._actions.set_state(choices)
        closes, half_spreads = self.market.close[self._bar].tolist(), self._half_spreads[self._bar].tolist()
        return self._account.sized(weights, trades, closes, half_spreads, closing=closing)

    def skip(self) -> tuple[NDArray[np.float32], bool]:
        """As `take`, for a bar without a decision: positions are held."""
        if self._realized is None or not self._realized.closing[self._bar]:
            fillable, closings = self._tables()
            fillable[self._bar], closings[self._bar] = False, False
        return self.take(self._hold)

    def take_choices_from_holdings(self) -> None:
        """Set the choices to the positions held, as when a model replaces another."""
        self._actions.follow(self._account.holdings)

    def continue_from(self, other: "ReplayEnv") -> None:
        """Continue with the account and ledger of another model's environment over the same bars."""
        self.set_plain_state(other.get_plain_state())

    def stand_where(self, other: "ReplayEnv") -> None:
        """Copy the account of `other`, but not its ledger."""
        self._bar, self._last_bar, self._ruined = other._bar, other._last_bar, False
        state = other._account.state()
        copied = {name: value.copy() if isinstance(value, list) else value for name, value in state.items()}
        self._account.set_state(copied)
        self._actions.set_state(list(other._actions.state()))

    def try_step(self, action: Any) -> ReplayAccount:
        """The account after a step that is not recorded in the ledger. action: None: no decision."""
        if action is None:
            bar, (fillable, closings) = self._bar, self._tables()
            before = fillable[bar].copy(), closings[bar]
            fillable[bar], closings[bar] = False, False
            FastTradingEnv.step(self, self._hold)
            fillable[bar], closings[bar] = before
        else:
            FastTradingEnv.step(self, action)
        return self._account

    def set_account(self, *, cash: float, equity: float, holdings: list[float]) -> None:
        """Set the account's state at this bar; entry prices, which follow from fills, are unchanged."""
        self._account.cash, self._account.equity = cash, equity
        self._account.holdings[:] = holdings

    def _tables(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(which orders can be filled, which close all positions) in this environment."""
        fillable, closings = self._fillable, self._closings
        assert fillable is not None, "set by _bind_market"
        assert closings is not None, "set by _bind_market"
        return fillable, closings

    def _account_class(self, engine: Engine) -> type[LimitTrackingAccount]:
        return ReplayAccount  # type: ignore[return-value]
