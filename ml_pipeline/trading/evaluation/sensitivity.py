"""Sensitivity of an agent's return to fees and delays: its orders are run again at other fees and later bars."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol, traded_values
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import replayed_equity
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray

FEES_BPS = (0.0, 1.0, 5.0, 10.0, 25.0)
DELAYS = (0, 1, 2, 3)
# The break-even fee is searched up to the largest fee that the rules allow, to within the tolerance.
LARGEST_FEE_BPS = 1_000.0
TOLERANCE_BPS = 0.05
# Chance exceeds this many standard errors about once in 20 times.
_MOST_BY_LUCK = 2.0

Verdict = Literal["no trades", "found", "above the largest fee", "below zero without fees", "below zero without costs"]
FREE: dict[str, Any] = {
    "fee_bps": 0.0,
    "sell_fee_bps": None,
    "fixed_fee": 0.0,
    "slippage_bps": 0.0,
    "borrow_bps_per_year": 0.0,
    "financing_bps_per_year": None,
}
"""Rules without any cost; the quoted spread belongs to the market."""


@dataclass(frozen=True)
class BreakEven:
    """The fee on traded value at which the same orders earn nothing.

    fee_bps: only if the verdict is "found". without_costs: the total log return without any costs. kept: other costs,
    which apply at every fee, such as "slippage of 1 bps".
    """

    verdict: Verdict
    fee_bps: float | None
    without_costs: float
    kept: tuple[str, ...] = ()

    def sentence(self) -> str:
        """A sentence for the report."""
        free = f"{100 * np.expm1(self.without_costs):+,.1f} %"
        loses = "loses" if self.without_costs < 0 else "earns nothing"
        others = " and ".join([*filter(None, [", ".join(self.kept[:-1])]), *self.kept[-1:]])
        kept = f"with {others}" if self.kept else "no other costs"
        by = "its orders run again at other fees"
        return {
            "no trades": "The agent never traded, so it has no break-even fee.",
            "found": f"The agent breaks even at a fee of {self.fee_bps or 0:.1f} bps ({by}, to within "
            f"{TOLERANCE_BPS:g} bps; {kept}).",
            "above the largest fee": f"The agent gains at every fee up to {LARGEST_FEE_BPS:,.0f} bps ({by}; {kept}).",
            "below zero without fees": f"The agent has no break-even fee: without costs its orders earn {free}, but "
            f"{others} cost more.",
            "below zero without costs": f"The agent has no break-even fee: it {loses} even without any costs ({free}).",
        }[self.verdict]


@dataclass(frozen=True)
class LateGain:
    """A gain from orders `delay` bars late over orders in time, as total log returns.

    It arises in the bars between an order and its late copy, in which the two accounts differ. n_orders: orders
    filled in time. errors: the gain in standard errors, from the differences in return per bar.
    """

    delay: int
    in_time: float
    late: float
    n_orders: int
    errors: float

    def sentence(self) -> str:
        """A sentence for the report."""
        bars = "1 bar" if self.delay == 1 else f"{self.delay} bars"
        late, in_time = (f"{100 * np.expm1(each):+,.1f} %" for each in (self.late, self.in_time))
        against = 100 * np.expm1((self.late - self.in_time) / self.n_orders)
        start = (
            f"Orders {bars} late would have earned {late} instead of {in_time}: right after an order, prices moved "
            f"against it by {against:.2f} % of the account (mean of {counted(self.n_orders, 'order')}). This is "
            f"{self.errors:.1f} standard errors"
        )
        if self.errors < _MOST_BY_LUCK:
            return f"{start}, within the range of chance."
        return f"{start}, more than chance explains: the agent acts too early, as in a bounce of prices."


@dataclass(frozen=True)
class Sensitivity:
    """Total log returns ln(V_end / V_start) by fee in bps, and by delay in bars; -inf if no equity is left.

    by_fee: the fee applies to buys and sales; other costs stay. by_delay: the same orders, later. late_gain: of the
    most profitable delay, if that is not 0.
    """

    by_fee: dict[float, float]
    by_delay: dict[int, float]
    break_even: BreakEven
    late_gain: LateGain | None = None

    def sentences(self) -> list[str]:
        """For the report."""
        return [self.break_even.sentence(), *([] if self.late_gain is None else [self.late_gain.sentence()])]


def analyze_sensitivity(env: StatefulTradingEnv, agent: Ledger, actions: Sequence[Any]) -> Sensitivity:
    """Run `actions` again at each fee, at each delay, and at the break-even fee; `agent` is their ledger in `env`."""
    again = partial(replayed_equity, env.market, actions=actions, window=env.window)
    at_fee = _Remembered(lambda fee: log_return(again(replace(env.rules, fee_bps=fee, sell_fee_bps=None))))
    late = {delay: again(env.rules, delay=delay) for delay in DELAYS}
    return Sensitivity(
        by_fee={fee: at_fee(fee) for fee in FEES_BPS},
        by_delay={delay: log_return(equity) for delay, equity in late.items()},
        break_even=_break_even(env, actions, at_fee, trades=bool(traded_values(agent).any())),
        late_gain=_late_gain(agent, late),
    )


def _late_gain(agent: Ledger, late: Mapping[int, FloatArray]) -> LateGain | None:
    returns = {delay: log_return(equity) for delay, equity in late.items()}
    delay = max(returns, key=lambda each: returns[each])
    if delay == 0 or not returns[delay] > returns[0] > -np.inf:
        return None
    n = min(len(late[0]), len(late[delay]))
    differences = np.diff(np.log(late[delay][:n])) - np.diff(np.log(late[0][:n]))
    error = float(np.sqrt(long_run_covariance(differences)[0, 0] * len(differences)))
    if not error > 0:
        return None
    gain = returns[delay] - returns[0]
    n_orders = int(np.count_nonzero(per_symbol(agent, "filled")))
    return LateGain(delay, returns[0], returns[delay], n_orders, gain / error)


def first_crossing(function: Callable[[float], float], points: Sequence[float], tolerance: float) -> float | None:
    """The first x at which `function`, above 0 at the first point, is 0 or less, to within `tolerance`, by bisection.

    points: increasing; a double crossing between two points is missed. None if there is no crossing.

    >>> round(first_crossing(lambda x: 2 - x * x, [0, 1, 10], 1e-6), 5)
    1.41421
    """
    below = next((i for i, point in enumerate(points) if function(point) <= 0), None)
    if below is None:
        return None
    assert below > 0, "the function is above 0 at the first point"
    low, high = points[below - 1], points[below]
    while high - low > 2 * tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2


def log_return(equity: FloatArray) -> float:
    """ln(V_end / V_start); -inf if no equity is left."""
    return float(np.log(equity[-1] / equity[0])) if equity[-1] > 0 else -np.inf


def _break_even(
    env: StatefulTradingEnv, actions: Sequence[Any], at_fee: Callable[[float], float], *, trades: bool
) -> BreakEven:
    rules, market = env.rules, env.market
    free_market, free_rules = replace(market, half_spread=None), replace(rules, **FREE)
    equity = replayed_equity(free_market, free_rules, actions, window=env.window)
    without_costs = log_return(equity)
    result = partial(BreakEven, without_costs=without_costs, kept=_other_costs(rules, market.half_spread is not None))
    if not trades:
        return result("no trades", None)
    if without_costs <= 0:
        return result("below zero without costs", None)
    if at_fee(0.0) <= 0:
        return result("below zero without fees", None)
    doubled = [FEES_BPS[-1] * 2**i for i in range(1, 6)]
    fee = first_crossing(at_fee, [*FEES_BPS, *doubled, LARGEST_FEE_BPS], TOLERANCE_BPS)
    return result("above the largest fee" if fee is None else "found", fee)


def _other_costs(rules: TradingRules, quotes: bool) -> tuple[str, ...]:
    return tuple(
        text
        for is_on, text in (
            (rules.slippage_bps, f"slippage of {rules.slippage_bps:g} bps"),
            (quotes, "the quoted spread"),
            (rules.fixed_fee, f"a fee of {rules.fixed_fee:g} per order"),
            (rules.borrow_bps_per_year, f"borrowing at {rules.borrow_bps_per_year:g} bps a year"),
            (rules.financing_bps_per_year, f"financing at {rules.financing_bps_per_year or 0:g} bps a year"),
        )
        if is_on
    )


class _Remembered:
    """A function of a float that caches its values."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self._function = function
        self._values: dict[float, float] = {}

    def __call__(self, x: float) -> float:
        if x not in self._values:
            self._values[x] = self._function(x)
        return self._values[x]
