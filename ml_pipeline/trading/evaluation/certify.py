"""A second opinion on a ledger: vectorbt, an independent engine, replays its orders."""

import warnings

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.trading.accounts.ledger import Ledger, symbols_of
from ml_pipeline.trading.accounts.rules import TradingRules
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
            f"{result}, but at most {TOLERANCE:g} is rounding; the ledger or its rules are wrong."
        )
    return f"{result}, which is rounding."


def replayed_equity(ledger: Ledger, rules: TradingRules, periods_per_year: float) -> FloatArray:
    """The equity of each row by vectorbt's `Portfolio.from_orders`, from only the fills and closes of the ledger.

    Costs are computed again from `rules` and the half-spreads of the ledger. vectorbt has no borrowing fee, so the fee
    of the shorts at each close is subtracted from its result, as far as there is cash to pay it.
    Raises UserError if vectorbt is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vectorbt
    except ImportError as error:
        raise UserError("--certify needs vectorbt, which is not installed; pip install vectorbt.") from error
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
    """The largest difference between the equity of both engines, relative to the ledger's equity.

    Equity below a thousandth of its start counts as that.
    """
    equity = ledger["equity"]
    scale = np.maximum(np.abs(equity), 1e-3 * equity[0])
    return float((np.abs(replayed_equity(ledger, rules, periods_per_year) - equity) / scale).max())
