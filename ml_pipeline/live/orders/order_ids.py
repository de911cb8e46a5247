"""Names orders so that the same decision always has the same name, whoever asks: a broker then takes it only once."""

import hashlib
import re

import numpy as np

LONGEST_ID = 48
"""What every broker takes as a client order id."""
_SYMBOL_SHOWN = 16
_DIGEST_SIZE = 12


def client_order_id(session_id: str, bar_time: np.datetime64, symbol: str, *, purpose: str = "") -> str:
    """The id of the order for `symbol` that a session decides at the bar of this time.

    At most 48 letters, digits, dashes and underscores: the time and the symbol to read, and a digest of everything.
    The time comes first, so that a table of orders by id grows at its end.
    purpose: tells a second order for the symbol at the same bar, such as "flatten", from the first.

    >>> client_order_id("eurusd", np.datetime64("2024-03-01T09:35"), "EUR/USD")
    '20240301T093500-EUR_USD-f3697d114dc2'
    """
    time = bar_time.astype("datetime64[ns]")
    whole = repr((session_id, str(time), symbol, purpose))
    digest = hashlib.blake2b(whole.encode(), digest_size=_DIGEST_SIZE // 2).hexdigest()
    shown = re.sub(r"[^A-Za-z0-9]", "_", symbol)[:_SYMBOL_SHOWN]
    second = re.sub(r"[-:]", "", str(time.astype("datetime64[s]")))
    return f"{second}-{shown}-{digest}"
