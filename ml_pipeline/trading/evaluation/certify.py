"""Verify a ledger with vectorbt, an independent engine that replays its orders.

Costs of fills and interest are implemented here again on purpose, instead of imported from `accounts.orders`.
"""

import warnings

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError, install_extra
from ml_pipeline.trading.accounts.ledger import Ledger, fills_of, per_symbol
from ml_pipeline.trading.accounts.rules import LARGEST_LEVERAGE, TradingRules
from ml_pipeline.trading.market.data import FloatArray

# A larger relative difference of equity than this is an error in one of the two engines.
TOLERANCE = 1e-9


class CertificationFailed(CheckFailed):
    """Two engines find different equity for the same orders, so neither can be trusted."""


def certify_ledger(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> str:
    """Replay the ledger; return a sentence with the largest relative difference of equity.

    Raises CertificationFailed if the difference is above TOLERANCE, and UserError if vectorbt is not installed.
    """
    difference = largest_difference(ledger, rules, periods_per_year)
    result = f"Replayed by vectorbt: the largest relative difference of equity is {difference:.1e}"
    if not difference <= TOLERANCE:
        raise CertificationFailed(
            f"{result}, but rounding explains at most {TOLERANCE:g}; the ledger or its rules are wrong."
        )
    return f"{result}, which rounding explains."


def replayed_equity(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> FloatArray:
    """The equity of each row by vectorbt's `Portfolio.from_orders`, from only the fills and closes of the ledger.

    vectorbt fills one order per row and asset, so an exit within a bar gets a second row for that bar. Costs are
    computed again from `rules` and the half-spreads of the ledger. vectorbt has no borrowing fees and no financing, so
    these are subtracted from its result at each close, without leverage only as far as there is cash.
    Raises UserError if vectorbt is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vectorbt
    except ImportError as error:
        raise UserError(f"--certify needs vectorbt, which is not installed; {install_extra('certify')}") from error
    spread, close, position = (per_symbol(ledger, kind) for kind in ("half_spread", "close", "position"))
    (filled, price), (exited, exit_price) = fills_of(ledger)
    if exited.any():
        filled, price = _alternating(filled, exited), _alternating(price, exit_price)
        spread, close = _alternating(spread, spread), _alternating(close, close)
    terms = rules.terms(periods_per_year)
    # vectorbt cannot borrow, so its account also starts with the money that the account may have borrowed.
    lent = LARGEST_LEVERAGE * float(ledger["equity"].max()) if rules.leverage > 1 else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        portfolio = vectorbt.Portfolio.from_orders(
            close=np.where(close > 0, close, 1.0),
            size=filled,
            price=np.where(price > 0, price, 1.0),
            fees=np.where(filled > 0, terms.buy_rate, terms.sell_rate) + spread,
            fixed_fees=np.where(filled != 0, terms.fixed_fee, 0.0),
            direction="both",
            init_cash=float(ledger["equity"][0]) + lent,
            cash_sharing=True,
            group_by=True,
            call_seq="auto",  # sells before buys
            freq="1D",
        )
        value, cash = (np.asarray(each(), dtype=np.float64).reshape(-1) for each in (portfolio.value, portfolio.cash))
    per_bar = len(close) // len(position)
    value, cash, close = (rows[per_bar - 1 :: per_bar] for rows in (value, cash, close))
    days = ledger.get("interest_days", np.ones(len(position)))
    borrowed = np.where(position < 0, -position * close, 0.0).sum(axis=1) * terms.borrow_rate * days
    if rules.leverage == 1:
        return np.asarray(value - np.minimum(np.cumsum(borrowed), cash))
    interest = np.zeros(len(position))  # accrued until each row
    for row, fee in enumerate(borrowed):
        before = interest[row - 1] if row else 0.0
        owed = max(lent + before - cash[row], 0.0)
        interest[row] = before + fee + owed * terms.financing_rate * days[row]
    return np.asarray(value - lent - interest)


def _alternating(first: FloatArray, second: FloatArray) -> FloatArray:
    """The rows of both in turn, (2n, A)."""
    return np.stack([first, second], axis=1).reshape(-1, first.shape[1])


def largest_difference(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> float:
    """The largest difference between the equity of both engines, relative to the ledger's equity.

    Equity below a thousandth of the start counts as a thousandth.
    """
    equity = ledger["equity"]
    scale = np.maximum(np.abs(equity), 1e-3 * equity[0])
    return float((np.abs(replayed_equity(ledger, rules, periods_per_year) - equity) / scale).max())
