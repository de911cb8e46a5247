"""The kernel as machine code, for one account or a batch. Needs numba (extra `fast`).

Results equal those of plain Python to the last bit. Every function is inlined into its caller: otherwise the compiler
emits some forty calls per step of `where` and its like, and a batch of 4,096 accounts takes 330 us instead of 40.
Compiling takes 2 s, once for all processes.
"""

import inspect
import math
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ml_pipeline.runtime.code_cache import keep_code
from ml_pipeline.runtime.seeding import mixed
from ml_pipeline.trading.accounts import execution, orders, within_bar
from ml_pipeline.trading.accounts.execution import Kernel, make_kernel, weight_in_equity
from ml_pipeline.trading.accounts.orders import Ops, Terms
from ml_pipeline.trading.accounts.within_bar import Bar, Book

_N_TERMS = len(Terms._fields)


@cache
def can_compile() -> bool:
    """Whether numba can be imported. Warns, with the reason, if it is installed but fails to import."""
    if find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except Exception as error:  # numba may be too old for this NumPy, or lack a library
        warnings.warn(f"numba cannot be imported ({error}); accounts are stepped without it.", stacklevel=3)
        return False
    return True


def _jit(*, inlined: bool) -> Callable[[Any], Any]:
    from numba import njit

    # NumPy's error model divides without a branch that raises; nothing here divides by zero.
    compiler = njit(error_model="numpy", forceinline=inlined)
    sources = [Path(inspect.getfile(module)) for module in (execution, orders, within_bar)]
    return compiler if inlined else lambda function: keep_code(compiler(function), made_of=sources)


@cache
def _kernel() -> Kernel:
    """The kernel for floats, compiled."""
    jit = _jit(inlined=True)
    ops = Ops(
        where=jit(lambda condition, yes, no: yes if condition else no),
        least=jit(lambda a, b: a if a < b else b),
        greatest=jit(lambda a, b: a if a > b else b),
        floor=jit(lambda value: math.floor(value)),  # noqa: PLW0108  # numba compiles Python functions only
        log=math.log,
        sqrt=math.sqrt,
        tanh=math.tanh,
    )
    return make_kernel(ops, compiled=jit)


@cache
def compiled_step() -> Callable[..., tuple[float, bool]]:
    """The step of one account as machine code, made once per process.

    step(bar, account, money, fill_prices, half_spreads, closes) -> (equity, margin_called)

    account: float64 (6, A). Its rows are holdings, orders, filled, target weights, whether to trade (0 is no), and the
    weights in the equity within -clip..clip, which the step writes.
    money: float64 (3 + number of `Terms`,): cash, costs of the step, the terms in their order, clip.
    fill_prices, half_spreads, closes: float64 (T, A). The step reads row `bar` of the first two and row `bar + 1` of
    the last. Passing an array costs 0.1 us, so there are few.
    """
    kernel_step, weigh = _kernel().step, _jit(inlined=True)(weight_in_equity)

    def step(bar, account, money, fill_prices, half_spreads, closes):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        holdings, row = account[0], closes[bar + 1]
        money[0], money[1], equity, margin_called = kernel_step(
            account[3],
            account[4] != 0.0,
            money[0],
            holdings,
            fill_prices[bar],
            half_spreads[bar],
            row,
            Terms(*to_fixed_tuple(money[2:], _N_TERMS)),
            account[1],
            account[2],
        )
        clip = money[2 + _N_TERMS]
        for a in range(len(row)):
            account[5, a] = weigh(holdings[a] * row[a], equity, clip)
        return equity, margin_called

    from numba.np.unsafe.ndarray import to_fixed_tuple

    return _jit(inlined=False)(step)


@cache
def compiled_step_within() -> Callable[..., tuple[float, bool]]:
    """As `compiled_step`, for an account that trades within bars.

    account: float64 (12, A); after the rows of `compiled_step` come entries, exits, exited, exit prices, called and
    fill prices of `Book`. The last arguments are `BarTables`.
    """
    kernel_step, weigh = _kernel().step_within, _jit(inlined=True)(weight_in_equity)

    def step(bar, account, money, fill_prices, half_spreads, closes, opens, lows, highs, can_exit, days):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        holdings, row = account[0], closes[bar + 1]
        money[0], money[1], equity, margin_called = kernel_step(
            account[3],
            account[4] != 0.0,
            money[0],
            Bar(
                closes[bar],
                fill_prices[bar],
                half_spreads[bar],
                opens[bar],
                lows[bar],
                highs[bar],
                row,
                can_exit[bar],
                days[bar, 0],
            ),
            Book(
                holdings,
                account[6],
                account[1],
                account[2],
                account[7],
                account[8],
                account[9],
                account[10],
                account[11],
            ),
            Terms(*to_fixed_tuple(money[2:], _N_TERMS)),
        )
        clip = money[2 + _N_TERMS]
        for a in range(len(row)):
            account[5, a] = weigh(holdings[a] * row[a], equity, clip)
        return equity, margin_called

    from numba.np.unsafe.ndarray import to_fixed_tuple

    return _jit(inlined=False)(step)


@cache
def compiled_choose() -> Callable[..., tuple[Any, Any, Any]]:
    """`Arrays.choose` as machine code."""
    import numpy as np

    def choose(wanted, had, fillable, flat, leverage):  # type: ignore[no-untyped-def]
        n_assets, n_accounts = wanted.shape
        weights, choices = np.empty((n_assets, n_accounts)), np.empty((n_assets, n_accounts), np.int64)
        may_trade = np.empty((n_assets, n_accounts), np.bool_)
        for a in range(n_assets):
            for n in range(n_accounts):
                may_trade[a, n] = fillable[a, n] & (wanted[a, n] != had[a, n])
                weights[a, n] = (wanted[a, n] - flat) / n_assets * leverage
                choices[a, n] = wanted[a, n] if may_trade[a, n] else had[a, n]
        return weights, may_trade, choices

    return _jit(inlined=False)(choose)


@cache
def compiled_advance(*, single_asset: bool) -> Callable[..., tuple[Any, Any, Any, Any]]:
    """`Arrays.advance` as machine code.

    It loops over accounts. For a single asset, a separate loop gathers the prices so that the compiler can vectorize.
    """
    import numpy as np

    kernel_step, step_one = _kernel().step, _kernel().step_one

    def advance(tables, rows, weights, may_trade, batch, terms):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        n_accounts, quoted = len(rows), tables.half_spreads.shape[1] > 1
        cash, costs, equity = np.empty(n_accounts), np.empty(n_accounts), np.empty(n_accounts)
        margin_called = np.empty(n_accounts, np.bool_)
        for n in range(n_accounts):
            row = rows[n]
            cash[n], costs[n], equity[n], margin_called[n] = kernel_step(
                weights[:, n],
                may_trade[:, n],
                batch.cash[n],
                batch.holdings[:, n],
                tables.fill_prices[:, row],
                tables.half_spreads[:, row if quoted else 0],
                tables.closes[:, row + 1],
                Terms(terms.buy_rate[n], terms.sell_rate[n], *terms[2:]),
                batch.orders[:, n],
                batch.filled[:, n],
            )
        return cash, costs, equity, margin_called

    def advance_one(tables, rows, weights, may_trade, batch, terms):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        n_accounts, quoted = len(rows), tables.half_spreads.shape[1] > 1
        prices, spreads, closes = np.empty(n_accounts), np.zeros(n_accounts), np.empty(n_accounts)
        for n in range(n_accounts):
            prices[n], closes[n] = tables.fill_prices[0, rows[n]], tables.closes[0, rows[n] + 1]
            if quoted:
                spreads[n] = tables.half_spreads[0, rows[n]]
        cash, costs, equity = np.empty(n_accounts), np.empty(n_accounts), np.empty(n_accounts)
        margin_called = np.empty(n_accounts, np.bool_)
        holdings, orders, filled = batch.holdings[0], batch.orders[0], batch.filled[0]
        for n in range(n_accounts):
            cash[n], costs[n], equity[n], margin_called[n], holdings[n], orders[n], filled[n] = step_one(
                weights[0, n],
                may_trade[0, n],
                batch.cash[n],
                holdings[n],
                prices[n],
                spreads[n],
                closes[n],
                Terms(terms.buy_rate[n], terms.sell_rate[n], *terms[2:]),
            )
        return cash, costs, equity, margin_called

    return _jit(inlined=False)(advance_one if single_asset else advance)


@cache
def compiled_advance_within() -> Callable[..., tuple[Any, Any, Any, Any]]:
    """`Arrays.advance_within` as machine code."""
    import numpy as np

    kernel_step = _kernel().step_within

    def advance(tables, bars, rows, weights, may_trade, cash_before, book, terms):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        n_accounts, quoted = len(rows), tables.half_spreads.shape[1] > 1
        cash, costs, equity = np.empty(n_accounts), np.empty(n_accounts), np.empty(n_accounts)
        margin_called = np.empty(n_accounts, np.bool_)
        for n in range(n_accounts):
            row = rows[n]
            cash[n], costs[n], equity[n], margin_called[n] = kernel_step(
                weights[:, n],
                may_trade[:, n],
                cash_before[n],
                Bar(
                    tables.closes[:, row],
                    tables.fill_prices[:, row],
                    tables.half_spreads[:, row if quoted else 0],
                    bars.opens[:, row],
                    bars.lows[:, row],
                    bars.highs[:, row],
                    tables.closes[:, row + 1],
                    bars.can_exit[:, row],
                    bars.days[0, row],
                ),
                Book(
                    book.holdings[:, n],
                    book.entries[:, n],
                    book.orders[:, n],
                    book.filled[:, n],
                    book.exits[:, n],
                    book.exited[:, n],
                    book.exit_prices[:, n],
                    book.called[:, n],
                    book.fill_prices[:, n],
                ),
                Terms(terms.buy_rate[n], terms.sell_rate[n], *terms[2:]),
            )
        return cash, costs, equity, margin_called

    return _jit(inlined=False)(advance)


@cache
def compiled_outcomes() -> Callable[..., tuple[Any, Any, Any, Any]]:
    """`Arrays.outcomes` as machine code."""
    import numpy as np

    def outcomes(rows, last_rows, margin_called, equity, ruin):  # type: ignore[no-untyped-def]
        n_accounts = len(rows)
        following, terminated = np.empty(n_accounts, np.int64), np.empty(n_accounts, np.bool_)
        truncated, done = np.empty(n_accounts, np.bool_), np.empty(n_accounts, np.bool_)
        for n in range(n_accounts):
            following[n] = rows[n] + 1
            over = following[n] >= last_rows[n]
            terminated[n] = margin_called[n] | (equity[n] <= ruin)
            truncated[n] = over & (not terminated[n])
            done[n] = over | terminated[n]
        return following, terminated, truncated, done

    return _jit(inlined=False)(outcomes)


@cache
def compiled_mixed() -> Callable[[Any], Any]:
    """`row_generators.mixed` as machine code."""
    return _jit(inlined=False)(mixed)


@cache
def compiled_observe() -> Callable[..., Any]:
    """`NumpyArrays.observations` as machine code; it writes into its last argument.

    Unsigned indices need no check for negative values, and flat indices need no multiplication per axis. The weights
    of a single asset have a separate loop, which vectorizes; with several assets it would write each row twice.
    4,096 accounts with one asset and 16 features: 15 us instead of 24; with a window of ten bars 97 instead of 148.
    """
    import numpy as np

    weigh = _jit(inlined=True)(weight_in_equity)

    def observe(tables, rows, window, batch, clip, seen):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        closes, holdings, n_features = tables.closes, batch.holdings, tables.features.shape[1]
        features, size = tables.features.ravel(), window * n_features  # the rows of a window are contiguous
        flat, width = seen.ravel(), seen.shape[1]
        single_asset = len(holdings) == 1
        for n in range(len(rows)):
            first, start = np.uint64((rows[n] + 1 - window) * n_features), np.uint64(n * width)
            for k in range(np.uint64(size)):
                flat[start + k] = features[first + k]
            if not single_asset:
                row, equity = np.uint64(rows[n]), batch.equity[n]
                for a in range(len(holdings)):
                    flat[start + np.uint64(size + a)] = weigh(holdings[a, n] * closes[a, row], equity, clip)
        if single_asset:
            for n in range(len(rows)):
                worth, equity = holdings[0, n] * closes[0, np.uint64(rows[n])], batch.equity[n]
                seen[n, size] = weigh(worth, equity, clip)

    return _jit(inlined=False)(observe)
