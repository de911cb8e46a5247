"""Rewards, by name. Pure arithmetic on floats, arrays and tensors.

V[t] is the equity at the close of bar t, after costs; r[t] = V[t] / V[t-1] - 1. Rewards compute with `Ops`, so that the
same code serves one account and many. A user's own reward may do so too, or use floats if it is never batched.
A `RewardFunction`, whose `compute_reward(pf, df, realized_profit)` a user writes, reads the account. It works in the
environments of one account, and not in the batched one, which has many accounts and no such objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import isabstract, signature
from typing import Any, NamedTuple

from ml_pipeline.config.checks import check_number, check_positive
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runtime.user_code import import_by_name
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, Number, Ops
from ml_pipeline.trading.market.data import FloatArray

State = tuple[Number, ...]

# The smallest equity in a logarithm, as a fraction of the start: a ruined account may have none.
_SMALLEST_EQUITY = 1e-6
# Lower bounds of deviations and drawdowns: a ratio to almost nothing has no meaning.
_SMALLEST_DEVIATION = 1e-4
_SMALLEST_DRAWDOWN = 0.01


class Reward(ABC):
    """Base class of rewards: `begin` makes the state of an episode, `step` returns the reward and the next state.

    Environments share one reward object, so it must not store anything about an episode. The state is a tuple of
    numbers: it can be saved, and each of many accounts has its own.
    """

    reads_account = False
    """Whether an environment calls `step_account` in place of `step`."""

    def begin(self, ops: Ops, equity: Number) -> State:
        """The state at the start of an episode."""
        return ()

    @abstractmethod
    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        """(reward, next state) of a step that takes the equity from `before`, above 0, to `after`."""

    def step_account(
        self, state: State, before: float, account: Any, fills: Any, bar: Mapping[str, Any]
    ) -> tuple[Any, State]:
        """As `step`, of an account after a step; `RewardFunction` describes the arguments."""
        raise NotImplementedError


class LogReturn(Reward):
    """ln(V[t+1] / V[t]); the rewards of an episode sum to ln(V_end / V_start).

    Equity counts as at least one millionth of its start: a short can lose more than the account has.
    """

    def begin(self, ops: Ops, equity: Number) -> State:
        return (equity * _SMALLEST_EQUITY,)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        return ops.log(ops.greatest(after, state[0]) / before), state


class FastProfit(Reward):
    """(V[t+1] - V[t]) / V_start; the rewards of an episode sum to the profit as a fraction of the start."""

    def begin(self, ops: Ops, equity: Number) -> State:
        return (equity,)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        return (after - before) / state[0], state


class SimpleMomentum(Reward):
    """r[t+1] + m[t+1] / 2 with m[t+1] = 0.9 m[t] + 0.1 r[t+1] and m starts at 0: return plus its momentum."""

    def begin(self, ops: Ops, equity: Number) -> State:
        return (equity * 0.0,)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        simple_return = after / before - 1.0
        momentum = 0.9 * state[0] + 0.1 * simple_return
        return simple_return + 0.5 * momentum, (momentum,)


class FastProfitReward(Reward):
    """tanh((V[t+1] - V[t]) / reward_scaling): the profit in money, bounded by -1 and 1.

    reward_scaling: the profit of one bar, in money, above which more profit counts for less.
    """

    def __init__(self, reward_scaling: float = 10_000.0) -> None:
        check_positive("reward_scaling", reward_scaling)
        self.reward_scaling = reward_scaling

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        return ops.tanh((after - before) / self.reward_scaling), state


class SimpleMomentumReward(Reward):
    """tanh(100 r[t+1]): the return in percent, bounded by -1 and 1."""

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        return ops.tanh((after / before - 1.0) * 100.0), state


class DifferentialSharpe(Reward):
    """(B dA - A dB / 2) / (B - A^2)^1.5: how r changes an exponentially weighted Sharpe ratio.

    dA = r - A, dB = r^2 - B; then A += 0.01 dA and B += 0.01 dB. B - A^2 counts as at least 1e-8.
    Source: Moody and Saffell 1998, "Reinforcement learning for trading", eq. 9.
    """

    def begin(self, ops: Ops, equity: Number) -> State:
        return (equity * 0.0, equity * 0.0)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        simple_return = after / before - 1.0
        mean, square = state
        to_mean, to_square = simple_return - mean, simple_return * simple_return - square
        variance = ops.greatest(square - mean * mean, _SMALLEST_DEVIATION**2)
        reward = (square * to_mean - 0.5 * mean * to_square) / (variance * ops.sqrt(variance))
        return reward, (mean + 0.01 * to_mean, square + 0.01 * to_square)


class _RatioSoFar(Reward):
    """The change of a ratio over the episode so far; the rewards of an episode sum to its ratio, not annualized."""

    @abstractmethod
    def _ratio(self, ops: Ops, state: State) -> Number:
        """The ratio of the episode up to `state`."""

    @abstractmethod
    def _renewed(self, ops: Ops, state: State, before: Number, after: Number) -> State:
        """The state after a step."""

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        renewed = self._renewed(ops, state, before, after)
        return self._ratio(ops, renewed) - self._ratio(ops, state), renewed


class SharpeRatio(_RatioSoFar):
    """S[t+1] - S[t] with S = mean(r - f) / std(r, ddof 0) of the episode so far; a deviation counts as at least 1e-4.

    f = risk_free_rate / periods_per_year. risk_free_rate: simple return per year. periods_per_year: bars in a year.
    """

    def __init__(self, risk_free_rate: float = 0.0, periods_per_year: float = 252.0) -> None:
        check_number("risk_free_rate", risk_free_rate, lambda rate: -1 < rate < 10, "a return per year, such as 0.02")
        check_positive("periods_per_year", periods_per_year)
        self._risk_free = risk_free_rate / periods_per_year

    def begin(self, ops: Ops, equity: Number) -> State:
        zero = equity * 0.0
        return (zero, zero, zero)  # n, sum of r, sum of r^2

    def _renewed(self, ops: Ops, state: State, before: Number, after: Number) -> State:
        excess = after / before - 1.0 - self._risk_free
        return (state[0] + 1.0, state[1] + excess, state[2] + excess * excess)

    def _ratio(self, ops: Ops, state: State) -> Number:
        n = ops.greatest(state[0], 1.0)
        mean = state[1] / n
        return mean / ops.sqrt(ops.greatest(state[2] / n - mean * mean, _SMALLEST_DEVIATION**2))


class SortinoRatio(SharpeRatio):
    """As `SharpeRatio`, with sqrt(mean(min(r - f, 0)^2)) in place of the deviation."""

    def _renewed(self, ops: Ops, state: State, before: Number, after: Number) -> State:
        excess = after / before - 1.0 - self._risk_free
        loss = ops.least(excess, 0.0)
        return (state[0] + 1.0, state[1] + excess, state[2] + loss * loss)

    def _ratio(self, ops: Ops, state: State) -> Number:
        n = ops.greatest(state[0], 1.0)
        return state[1] / n / ops.sqrt(ops.greatest(state[2] / n, _SMALLEST_DEVIATION**2))


class CalmarRatio(_RatioSoFar):
    """C[t+1] - C[t] with C = (V / V_start - 1) / |largest drawdown|; a drawdown counts as at least 1 %."""

    def begin(self, ops: Ops, equity: Number) -> State:
        return (equity, equity, equity, equity * 0.0)  # start, now, highest, largest drawdown as a positive part

    def _renewed(self, ops: Ops, state: State, before: Number, after: Number) -> State:
        start, _, highest, drawdown = state
        highest = ops.greatest(highest, after)
        return (start, after, highest, ops.greatest(drawdown, 1.0 - after / highest))

    def _ratio(self, ops: Ops, state: State) -> Number:
        return (state[1] / state[0] - 1.0) / ops.greatest(state[3], _SMALLEST_DRAWDOWN)


class Scaled(Reward):
    """Another reward, times `scale`."""

    def __init__(self, reward: Reward, scale: float) -> None:
        self.reward = reward
        self.scale = scale
        self.reads_account = reward.reads_account

    def begin(self, ops: Ops, equity: Number) -> State:
        return self.reward.begin(ops, equity)

    def step(self, ops: Ops, state: State, before: Number, after: Number) -> tuple[Number, State]:
        value, state = self.reward.step(ops, state, before, after)
        return value * self.scale, state

    def step_account(
        self, state: State, before: float, account: Any, fills: Any, bar: Mapping[str, Any]
    ) -> tuple[Any, State]:
        value, state = self.reward.step_account(state, before, account, fills, bar)
        return value * self.scale, state


REWARDS: dict[str, type[Reward]] = {
    "log_return": LogReturn,
    "fast_profit": FastProfit,
    "fast_profit_reward": FastProfitReward,
    "simple_momentum": SimpleMomentum,
    "simple_momentum_reward": SimpleMomentumReward,
    "differential_sharpe": DifferentialSharpe,
    "sharpe_ratio": SharpeRatio,
    "sortino_ratio": SortinoRatio,
    "calmar_ratio": CalmarRatio,
}


def reward_name(reward: Any) -> str:
    """The name of a reward in settings; for a class, "module:Class".

    Raises UserError for a reward without a name, and for a class of the running script or notebook, which other
    processes, such as an evaluation, would not find.

    >>> reward_name("log_return"), reward_name(SharpeRatio)
    ('log_return', 'ml_pipeline.trading.envs.rewards:SharpeRatio')
    """
    if isinstance(reward, type) and "." not in reward.__qualname__:
        name = f"{reward.__module__}:{reward.__qualname__}"
    else:
        name = reward if isinstance(reward, str) else ""
    if name and not name.startswith("__main__:"):
        return name
    raise UserError(
        f'A reward in settings must be a name, "module:Class" or a class of a module, but got {reward!r}; move the '
        "class to the top of a module that is imported, or pass an object to the environment, as reward=."
    )


def reward_class(name: str) -> type[Reward]:
    """The class of the reward with this name, or the user's "module:Class".

    Raises UserError for an unknown name, with the nearest one, and for a class that is not a `Reward` or has no `step`.
    """
    name = reward_name(name)
    found: Any = import_by_name(name) if ":" in name else REWARDS.get(name)
    if found is None:
        raise UserError(f'There is no reward "{name}". {nearest(name, REWARDS)}')
    if not (isinstance(found, type) and issubclass(found, Reward)):
        raise UserError(f"{name} is not a class derived from ml_pipeline.trading.envs.rewards.Reward.")
    if isabstract(found):
        needs = "compute_reward(pf, df, realized_profit)" if found.reads_account else "step(ops, state, before, after)"
        raise UserError(f"{name} has no {needs.partition('(')[0]}(); a reward needs {needs}.")
    return found


def reward_parameters(name: str) -> tuple[str, ...]:
    """Names of the keyword arguments that the reward takes. Raises UserError as `reward_class`."""
    return tuple(signature(reward_class(name)).parameters)


def make_reward(
    name: str,
    scale: float = 1.0,
    kwargs: Mapping[str, Any] | None = None,
    *,
    periods_per_year: float | None = None,
) -> Reward:
    """The reward with this name, or of the user's class "module:Class", times `scale`.

    kwargs: arguments of the class. periods_per_year: for a class with this argument, unless `kwargs` has it.
    Raises UserError as `reward_class`, and for arguments that the class does not take.

    >>> type(make_reward("calmar_ratio")).__name__
    'CalmarRatio'
    """
    check_positive("reward_scale", scale)
    known, arguments = reward_parameters(name), dict(kwargs or {})
    for argument in arguments:
        if argument not in known:
            takes = nearest(argument, known) if known else "It takes none."
            raise UserError(f'The reward {name} has no argument "{argument}". {takes}')
    if periods_per_year is not None and "periods_per_year" in known:
        arguments.setdefault("periods_per_year", periods_per_year)
    try:
        made = reward_class(name)(**arguments)
    except TypeError as error:
        raise UserError(f"The reward {name} cannot be made: {error}.") from error
    return made if scale == 1.0 else Scaled(made, scale)


def keeps_own_values(reward: Reward) -> bool:
    """Whether an object of a user's class has attributes, which its steps might change."""
    if type(reward) is Scaled:
        return keeps_own_values(reward.reward)
    return type(reward).__module__ != __name__ and bool(vars(reward))


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
    """The trade of one asset at one price: units bought, below 0 if sold."""

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
        them, each with one value per symbol. realized_profit: profit of the positions closed in this step
        over their average price, before costs; 0 if none was closed.
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
    """Add a fill to the units held and their average prices, and return the profit of the closed part."""
    i, units, price = fill
    before = held[i]
    after = held[i] = before + units
    if before * units >= 0:  # opens, or adds
        prices[i] = (before * prices[i] + units * price) / after if after else 0.0
        return 0.0
    closed = -units if abs(units) <= abs(before) else before
    profit = float(closed * (price - prices[i]))
    if before * after < 0:  # reversed
        prices[i] = price
    return profit
