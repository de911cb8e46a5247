"""Whether two ledgers are the same, to the bit."""

from typing import Any

import numpy as np

from ml_pipeline.trading.accounts.ledger import Ledger


def same_bits(first: Ledger, second: Ledger) -> bool:
    """Whether two ledgers have the same columns with the same bits; NaN equals NaN."""
    return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)


def _same(first: Any, second: Any) -> bool:
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    return first.shape == second.shape and bool(np.all((first == second) | (np.isnan(first) & np.isnan(second))))
