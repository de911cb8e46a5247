"""Rewards that read the account: `RewardFunction`, whose `compute_reward(pf, df, realized_profit)` a user writes.

They work in the environments of one account, and not in the batched one, which has many accounts and no such objects.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Number, Ops
from ml_pipeline.trading.envs.rewards import Reward, State
from ml_pipeline.trading.market.data import FloatArray

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Portfolio:
    """The account after a step. Money in the currency of the prices; positions in units, below 0 if short."""

    initial_cash: float
    cash: float
    equity: float
    """Value at the close of the bar, after costs."""
    equity_before: float
    """Value at the close of the bar before."""
    positions: Mapping[str, float]

    def net_value(self) -> float:
        """The equity."""
        return self.equity


class Fill(NamedTuple):
    """What one asset traded at one price: units bought, below 0 if sold."""

    asset: int
    units: float
    price: float


class RewardFunction(Reward):
    """Base class of rewards that read the account. Keep nothing on `self`: environments share one object."""

    reads_account = True

    @abstractmethod
    def compute_reward(self, pf: Portfolio, df: Mapping[str, FloatArray], realized_profit: float) -> float:
        """The reward of a step.

        pf: the account after it. df: "open" and "close" of the bar that closed, and "high" and "low" if a rule needs
        them, each with one value per symbol. realized_profit: money that the positions closed in this step made
        against their average price, before costs; 0 if none was closed.
        """

    def begin(self, ops: Ops, equity: Number) -> State:
        if ops is not PLAIN_OPS:
            raise UserError(
                f"The reward {type(self).__name__} has compute_reward, which reads one account, but vec_env is "
                "batched; choose vec_env parallel or serial, or write step() in place of compute_reward()."
            )
        return (equity,)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        raise AssertionError("an environment steps this reward by step_account")

    def step_account(
        self, state: State, before: float, account: Any, fills: Sequence[Fill], bar: Mapping[str, Any]
    ) -> tuple[float, State]:
        symbols = bar["symbols"]
        start, *rest = state
        n = len(symbols)
        held, prices = rest[:n] or [0.0] * n, rest[n:] or [0.0] * n
        profit = sum(_fill(held, prices, each) for each in fills)
        for i, now in enumerate(account.holdings):
            if abs(now - held[i]) > _ROUNDING * abs(now):  # the broker closes positions at the close
                profit += _fill(held, prices, Fill(i, now - held[i], float(bar["close"][i])))
        portfolio = Portfolio(
            float(start), account.cash, account.equity, before, dict(zip(symbols, account.holdings, strict=True))
        )
        columns = {name: values for name, values in bar.items() if name != "symbols"}
        return float(self.compute_reward(portfolio, columns, profit)), (start, *held, *prices)


def _fill(held: list[Any], prices: list[Any], fill: Fill) -> float:
    """Add a fill to the units held and their average prices, and return the profit of what it closed."""
    i, units, price = fill
    before = held[i]
    after = held[i] = before + units
    if before * units >= 0:  # opens, or adds
        prices[i] = (before * prices[i] + units * price) / after if after else 0.0
        return 0.0
    closed = -units if abs(units) <= abs(before) else before
    profit = float(closed * (price - prices[i]))
    if before * after < 0:  # turned round
        prices[i] = price
    return profit
