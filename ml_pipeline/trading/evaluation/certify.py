"""A second opinion on a ledger: its orders replayed by vectorbt, an engine that knows nothing of this one."""

import warnings

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.market.data import FloatArray

# Larger relative differences of equity than this are errors of one of the two engines.
TOLERANCE = 1e-9


class CertificationFailed(CheckFailed):
    """Another engine finds another equity for the same orders: neither can be believed."""


def certify_ledger(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> str:
    """A sentence with the largest relative difference of equity. Raises CertificationFailed above TOLERANCE."""
    difference = largest_difference(ledger, rules, periods_per_year)
    said = f"Replayed by vectorbt: the largest relative difference of equity is {difference:.1e}"
    if not difference <= TOLERANCE:
        raise CertificationFailed(f"{said}, but at most {TOLERANCE:g} is rounding; the ledger or its rules are wrong.")
    return f"{said}, which is rounding."


def replayed_equity(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> FloatArray:
    """The equity of each row as vectorbt's `Portfolio.from_orders` has it, from fills and closes of the ledger alone.

    Costs are computed anew from `rules` and the ledger's half-spreads. vectorbt knows no fee for borrowing: it is taken
    off what it says, bar by bar, for what is held short at the close, as far as there is cash to pay it.
    Raises UserError where vectorbt is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vectorbt
    except ImportError as error:
        raise UserError('--certify needs vectorbt; install it with: pip install "ml-pipeline[certify]"') from error
    none = np.zeros(len(ledger["time"]))
    filled, price, spread, close, position = (
        np.column_stack([ledger.get(f"{name}_{symbol}", none) for symbol in symbols_of(ledger)])
        for name in ("filled", "fill_price", "half_spread", "close", "position")
    )
    terms = rules.terms(periods_per_year)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        portfolio = vectorbt.Portfolio.from_orders(
            close=np.nan_to_num(close, nan=1.0),
            size=filled,
            price=np.nan_to_num(price, nan=1.0),
            fees=np.where(filled > 0, terms.buy_rate, terms.sell_rate) + spread,
            fixed_fees=np.where(filled != 0, terms.fixed_fee, 0.0),
            direction="both",
            init_cash=float(ledger["equity"][0]),
            cash_sharing=True,
            group_by=True,
            call_seq="auto",  # sells before buys
            freq="1D",
        )
        value, cash = (np.asarray(each(), dtype=np.float64).reshape(-1) for each in (portfolio.value, portfolio.cash))
    borrowed = np.where(position < 0, -position * np.nan_to_num(close), 0.0).sum(axis=1) * terms.borrow_rate
    return np.asarray(value - np.minimum(np.cumsum(borrowed), cash))


def largest_difference(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> float:
    """Of the two engines' equity, relative to the larger of the ledger's own and a thousandth of its start."""
    equity = ledger["equity"]
    scale = np.maximum(np.abs(equity), 1e-3 * equity[0])
    return float((np.abs(replayed_equity(ledger, rules, periods_per_year) - equity) / scale).max())
