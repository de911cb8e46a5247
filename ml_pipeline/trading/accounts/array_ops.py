"""Array operations for batches of accounts, in NumPy or machine code. `tensor_ops` has the same for torch tensors.

N accounts, A assets, T bars.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.runtime.seeding import mixed
from ml_pipeline.trading.accounts.compiled_kernel import (
    compiled_advance,
    compiled_advance_within,
    compiled_choose,
    compiled_mixed,
    compiled_observe,
    compiled_outcomes,
)
from ml_pipeline.trading.accounts.execution import Kernel, make_kernel
from ml_pipeline.trading.accounts.orders import NUMPY_OPS, Ops, Terms
from ml_pipeline.trading.accounts.within_bar import Bar, Book


class Tables(NamedTuple):
    """A market as a batch reads it.

    fill_prices, half_spreads, closes: (A, T); column t of the first two belongs to an order decided at bar t.
    half_spreads is (A, 1) if there are no quotes. features: float32 (T, D).
    """

    fill_prices: Any
    half_spreads: Any
    closes: Any
    features: Any


class Bars(NamedTuple):
    """What `Bar` needs besides `Tables`, each (A, T), days (1, T); column t is the bar after bar t."""

    opens: Any
    lows: Any
    highs: Any
    can_exit: Any
    days: Any


class Batch(NamedTuple):
    """Accounts: cash and equity (N,), holdings, orders and filled (A, N)."""

    cash: Any
    equity: Any
    holdings: Any
    orders: Any
    filled: Any


class Arrays:
    """The rules of a batch, by operations that `NumpyArrays` and `TorchArrays` define."""

    ops: Ops
    money: Any
    kernel: Kernel
    array: Callable[..., Any]
    take: Callable[..., Any]

    def mixed(self, states: Any) -> Any:
        """See `row_generators`."""
        return mixed(states)

    def advance(  # noqa: PLR0917
        self, tables: Tables, rows: Any, weights: Any, may_trade: Any, batch: Batch, terms: Terms
    ) -> tuple[Any, Any, Any, Any]:
        """(cash, costs, equity, margin_called) of every account after the bar at `rows`.

        Changes holdings, orders and filled in place.
        """
        no_quotes = tables.half_spreads.shape[1] == 1
        return self.kernel.step(
            weights,
            may_trade,
            batch.cash,
            batch.holdings,
            self.take(tables.fill_prices, rows),
            tables.half_spreads if no_quotes else self.take(tables.half_spreads, rows),
            self.take(tables.closes, rows + 1),
            terms,
            batch.orders,
            batch.filled,
        )

    def advance_within(  # noqa: PLR0917
        self, tables: Tables, bars: Bars, rows: Any, weights: Any, may_trade: Any, cash: Any, book: Book, terms: Terms
    ) -> tuple[Any, Any, Any, Any]:
        """As `advance`, for accounts that trade within bars. Changes the arrays of `book`, each (A, N), in place."""
        no_quotes = tables.half_spreads.shape[1] == 1
        opens, lows, highs, can_exit, (days,) = (self.take(table, rows) for table in bars)
        bar = Bar(
            self.take(tables.closes, rows),
            self.take(tables.fill_prices, rows),
            tables.half_spreads if no_quotes else self.take(tables.half_spreads, rows),
            opens,
            lows,
            highs,
            self.take(tables.closes, rows + 1),
            can_exit,
            days,
        )
        return self.kernel.step_within(weights, may_trade, cash, bar, book, terms)

    def choose(self, wanted: Any, had: Any, fillable: Any, flat: int, leverage: float) -> tuple[Any, Any, Any]:
        """(target weights, whether to trade, choices) of discrete actions, all (A, N); repeating one trades nothing.

        wanted, had: the choices of this step and the step before. `flat` is the choice that holds nothing. leverage:
        sum of the weights if all assets are held.
        """
        may_trade = fillable & (wanted != had)
        weights = self.array(wanted - flat, self.money) / len(wanted) * leverage
        return weights, may_trade, self.ops.where(may_trade, wanted, had)

    def outcomes(
        self, rows: Any, last_rows: Any, margin_called: Any, equity: Any, ruin: float
    ) -> tuple[Any, Any, Any, Any]:
        """(next rows, terminated, truncated, done), each (N,), of accounts that have left the bars at `rows`.

        A margin call terminates an account, and so does an equity of `ruin` or less.
        """
        rows = rows + 1
        terminated = margin_called | (equity <= ruin)
        truncated = (rows >= last_rows) & ~terminated
        return rows, terminated, truncated, terminated | truncated

    def weights_in_equity(self, tables: Tables, rows: Any, batch: Batch, clip: float) -> Any:
        """Each holding as a fraction of the equity, (A, N), within -clip..clip; 0 if the equity is not positive."""
        ops = self.ops
        equity = ops.where(batch.equity > 0.0, batch.equity, math.inf)
        weights = batch.holdings * self.take(tables.closes, rows) / equity
        return ops.least(ops.greatest(weights, -clip), clip)


class NumpyArrays(Arrays):
    """Operations on NumPy arrays. Money is float64, observations are float32."""

    ops = NUMPY_OPS
    money = np.float64

    def __init__(self) -> None:
        self.kernel: Kernel = make_kernel(NUMPY_OPS)

    def array(self, values: Any, dtype: Any = None) -> Any:
        return np.ascontiguousarray(values, dtype=dtype)

    def to_host(self, values: Any) -> Any:
        """As a NumPy array."""
        return values

    def full(self, shape: tuple[int, ...], value: float | bool, dtype: Any = None) -> Any:
        return np.full(shape, value, dtype=dtype)

    def take(self, table: Any, rows: Any) -> Any:
        """The columns `rows` of a table (A, T), as (A, N)."""
        return table.take(rows, axis=1)

    def observations(self, tables: Tables, rows: Any, window: int, batch: Batch, clip: float) -> Any:
        """float32 (N, W * D + A): the features of the `window` rows up to `rows`, then the weights in the equity."""
        weights, features = self.weights_in_equity(tables, rows, batch, clip), tables.features
        n_features = features.shape[1]
        seen = np.empty((len(rows), window * n_features + len(weights)), dtype=np.float32)
        for i in range(window):
            seen[:, i * n_features : (i + 1) * n_features] = features.take(rows - (window - 1 - i), axis=0)
        seen[:, window * n_features :] = weights.T
        return seen

    def chosen(self, flags: Any) -> Any:
        """The flagged accounts in the form that `renew` takes; empty if `renew` has nothing to do."""
        return flags.nonzero()[0]

    def renewable(self, values: Any, chosen: Any) -> Any:
        """The columns of `values` (..., N) that `renew` replaces."""
        return values[..., chosen]

    def renew(self, values: Any, chosen: Any, new: Any) -> Any:
        """A copy of `values` (..., N) that has `new` for the chosen accounts."""
        values = values.copy()
        values[..., chosen] = new
        return values

    def observe_again(self, seen: Any, chosen: Any, arguments: tuple[Any, ...]) -> Any:
        """`observations` of these arguments, if only the chosen accounts differ from the observations `seen`."""
        tables, rows, window, batch, clip = arguments
        part = Batch(*(values[..., chosen] for values in batch))
        renewed = seen.copy()
        renewed[chosen] = self.observations(tables, rows[chosen], window, part, clip)
        return renewed

    def finite(self, values: Any) -> bool:
        return bool(np.isfinite(values).all())

    def to_indices(self, values: Any) -> Any:
        return values.astype(np.int64, copy=False)

    def floats(self, values: Any) -> Any:
        return values.astype(np.float32)


class CompiledArrays(NumpyArrays):
    """The same operations as machine code.

    A step of 4,096 environments with every limit on, on one core (`benchmarks/trading_envs.py`): 106 us with one asset
    and 16 features (NumPy: 454), 1,298 us with ten assets and 100 features (NumPy: 3,474). It uses one thread, since
    more would compete with the learner's.
    """

    def mixed(self, states: Any) -> Any:
        return compiled_mixed()(states)

    def choose(self, *arguments: Any) -> tuple[Any, Any, Any]:
        return compiled_choose()(*arguments)

    def advance(self, tables: Tables, *arguments: Any) -> tuple[Any, Any, Any, Any]:
        return compiled_advance(single_asset=len(tables.closes) == 1)(tables, *arguments)

    def advance_within(self, *arguments: Any) -> tuple[Any, Any, Any, Any]:
        return compiled_advance_within()(*arguments)

    def outcomes(self, *arguments: Any) -> tuple[Any, Any, Any, Any]:
        return compiled_outcomes()(*arguments)

    def observations(self, tables: Tables, rows: Any, window: int, batch: Batch, clip: float) -> Any:
        seen = np.empty((len(rows), window * tables.features.shape[1] + len(batch.holdings)), dtype=np.float32)
        compiled_observe()(tables, rows, window, batch, clip, seen)
        return seen
