"""The result of an evaluation: ledgers of an agent and its baselines, their metrics, and sources of profit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.accounts.execution import RUIN_FRACTION
from ml_pipeline.trading.accounts.ledger import Ledger, fills_of, per_symbol, symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import Costs, costs_of
from ml_pipeline.trading.evaluation.implausible_results import ImplausibleResult
from ml_pipeline.trading.evaluation.metrics import returns_of
from ml_pipeline.trading.evaluation.summary import FEWEST_BARS, figures_of
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import Calendar

_FEWEST = 10


@dataclass(frozen=True)
class AlphaBeta:
    """The line returns = alpha + beta * benchmark returns, with standard errors; alpha per year, as in quantstats.

    NaN for fewer than 10 returns, and if the benchmark does not vary.
    """

    alpha: float
    beta: float
    alpha_se: float
    beta_se: float


def gains_by_asset(ledger: Ledger) -> FloatArray:
    """The gain of each asset in each row before costs, in money, (n, A): the change of its value minus purchases."""
    (filled, price), (exited, exit_price) = fills_of(ledger)
    value = per_symbol(ledger, "position") * per_symbol(ledger, "close")
    return np.asarray(np.diff(value, axis=0, prepend=0.0) - filled * price - exited * exit_price)


def profit_by_asset(ledger: Ledger, costs: Costs) -> dict[str, dict[str, float]]:
    """By symbol: "gain" before costs, each kind of "cost", and "profit", in money.

    The profits add up to the change of equity.
    """
    gains = gains_by_asset(ledger).sum(axis=0)
    of_kinds = {kind: cost.sum(axis=0) for kind, cost in costs.items()}
    table = {}
    for a, symbol in enumerate(symbols_of(ledger)):
        paid = {kind: float(cost[a]) for kind, cost in of_kinds.items()}
        table[symbol] = {"gain": float(gains[a]), **paid, "profit": float(gains[a]) - sum(paid.values())}
    return table


def profit_curves(ledger: Ledger, costs: Costs) -> FloatArray:
    """The profit of each asset since the start, after costs, (n, A); each row sums to the change of equity."""
    paid = sum((cost for cost in costs.values()), np.zeros(gains_by_asset(ledger).shape))
    return np.cumsum(gains_by_asset(ledger) - paid, axis=0)


def costs_by_kind(costs: Costs) -> dict[str, float]:
    """Money paid for each kind of cost, over all rows and assets."""
    return {kind: float(cost.sum()) for kind, cost in costs.items()}


def alpha_beta(returns: FloatArray, benchmark: FloatArray, periods_per_year: float) -> AlphaBeta:
    """Regress returns on those of a benchmark, such as holding, over the same bars.

    The standard errors are those of Newey and West 1987, for residuals that are autocorrelated and vary in size.
    """
    n = len(returns)
    nan = float("nan")
    if n < _FEWEST or not benchmark.std() > 1e-12 * max(float(np.abs(benchmark).max()), 1e-300):
        return AlphaBeta(nan, nan, nan, nan)
    x = np.column_stack([np.ones(n), benchmark])
    inverse = np.linalg.inv(x.T @ x / n)
    line = inverse @ (x.T @ returns) / n
    scores = x * (returns - x @ line)[:, None]
    errors = np.sqrt(np.diag(inverse @ long_run_covariance(scores) @ inverse) / n)
    return AlphaBeta(
        alpha=float(line[0] * periods_per_year),
        beta=float(line[1]),
        alpha_se=float(errors[0] * periods_per_year),
        beta_se=float(errors[1]),
    )


COLUMNS = ("agent", "buy_and_hold", "equal_weight", "random")
"""Keys of the figures."""

Ending = Literal["ruin", "margin call"]


def ending(ledger: Ledger, n_bars: int) -> Ending | None:
    """Why the account was closed before `n_bars` rows, or None; ruin counts in any row."""
    if ledger["equity"][-1] <= RUIN_FRACTION * ledger["equity"][0]:
        return "ruin"
    return "margin call" if len(ledger["time"]) < n_bars else None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Ledgers of an agent and its baselines over the same bars, at the same costs.

    The bars end when the agent's account is closed; a baseline may end earlier.
    n_bars: number of bars of the split; more than the agent's ledger if its account was closed early.
    implausible: findings that the result is too good to be true, if there are any.
    endings: why an account was closed early, for "agent", "buy_and_hold" and "equal_weight"; None if it was not.
    random: runs of random policies that trade as much as the agent. limits: in how many bars each limit was binding.
    remarks: sentences about problems of the data.
    figures: `summary.figures_of` for "agent", "buy_and_hold", "equal_weight" and "random"; those of "random" are means
    over the policies, without intervals.
    """

    split: str
    agent: Ledger
    buy_and_hold: Ledger
    equal_weight: Ledger
    random: list[Ledger]
    calendar: Calendar
    rules: TradingRules
    limits: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    n_bars: int = 0
    implausible: ImplausibleResult | None = None
    figures: dict[str, dict[str, float]] = field(init=False)
    endings: dict[str, Ending | None] = field(init=False)

    def __post_init__(self) -> None:
        if not self.n_bars:
            object.__setattr__(self, "n_bars", len(self.agent["time"]))
        bars = len(self.agent["time"])
        endings = {
            "agent": ending(self.agent, self.n_bars),
            "buy_and_hold": ending(self.buy_and_hold, bars),
            "equal_weight": ending(self.equal_weight, bars),
        }
        object.__setattr__(self, "endings", endings)
        terms = (self.calendar.periods_per_year, self.rules)
        figures = {
            "agent": figures_of(self.agent, *terms),
            "buy_and_hold": figures_of(self.buy_and_hold, *terms, holds=True),
            "equal_weight": figures_of(self.equal_weight, *terms, holds=True),
        }
        of_one = dict.fromkeys(figures["agent"], float("nan"))  # a mean has no interval
        figures["random"] = of_one | _means([figures_of(ledger, *terms, bounds=False) for ledger in self.random])
        object.__setattr__(self, "figures", figures)

    @property
    def columns(self) -> tuple[str, ...]:
        """The visible `COLUMNS`; equal weight is hidden for a single asset, because it equals buy and hold."""
        held, equal = self.buy_and_hold["equity"], self.equal_weight["equity"]
        if len(held) == len(equal) and np.allclose(held, equal, rtol=1e-9, atol=0.0):
            return tuple(name for name in COLUMNS if name != "equal_weight")
        return COLUMNS

    @property
    def n_random_ended(self) -> int:
        """Number of random policies whose accounts were closed before the end of the agent's period."""
        return sum(ending(ledger, len(self.agent["time"])) is not None for ledger in self.random)

    @property
    def against_holding(self) -> AlphaBeta:
        """Alpha and beta of the agent against buy and hold, over their common bars; NaN if there are too few."""
        agent, holder = (returns_of(ledger["equity"]) for ledger in (self.agent, self.buy_and_hold))
        n = min(len(agent), len(holder))
        if len(self.agent["time"]) < FEWEST_BARS:
            n = 0
        return alpha_beta(agent[:n], holder[:n], self.calendar.periods_per_year)

    @property
    def costs(self) -> Costs:
        """The agent's costs by kind, bar and asset."""
        return costs_of(self.agent, self.rules, self.calendar.periods_per_year)

    @property
    def title(self) -> str:
        """The symbols, split, days and costs of the evaluation."""
        first, last = (str(time)[:10] for time in self.agent["time"][[0, -1]])
        symbols = symbols_of(self.agent)
        market = ", ".join(symbols) if len(symbols) <= 4 else f"{len(symbols)} symbols"
        part = "all data" if self.split == "all" else f"{self.split} split"
        bars = counted(len(np.unique(self.agent["time"])), "bar")  # a row more closes positions at the end of a fold
        return f"{market}, {part}: {first} to {last}, {bars}, {_costs(self.rules)}"


def _means(figures: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the runs for which it is defined."""
    means = {}
    for name in figures[0]:
        defined = [f[name] for f in figures if math.isfinite(f[name])]
        means[name] = sum(defined) / len(defined) if defined else float("nan")
    return means


def _costs(rules: TradingRules) -> str:
    selling = "" if rules.sell_fee_bps in {None, rules.fee_bps} else f" and {rules.sell_fee_bps:g} on sales"
    others = (
        (rules.fixed_fee, f"{rules.fixed_fee:g} per order"),
        (rules.slippage_bps, f"slippage of {rules.slippage_bps:g} bps"),
        (rules.borrow_bps_per_year, f"borrowing at {rules.borrow_bps_per_year:g} bps a year"),
        (rules.financing_bps_per_year, f"financing at {rules.financing_bps_per_year or 0:g} bps a year"),
    )
    return ", ".join([f"after fees of {rules.fee_bps:g} bps{selling}", *(text for cost, text in others if cost)])
