"""The bars of one time as bytes, for the journal: every bit of them comes back."""

import json
import struct

import numpy as np

from ml_pipeline.trading.market.bar_set import BarSet

_PRICES = ("open", "high", "low", "close", "volume")
_HEAD = struct.Struct("<qqIIBBH")  # time, closed_at, symbols, bytes of the names, late, half-spreads, not used


def pack_bars(bars: BarSet) -> bytes:
    """The bars as bytes, as `unpack_bars` reads them."""
    names = json.dumps(list(bars.columns)).encode() if bars.columns else b""
    has_spread = bars.half_spread is not None
    tables = [getattr(bars, name) for name in _PRICES]
    tables += [bars.half_spread] if has_spread else []
    tables += list(bars.columns.values())
    times = (int(time.astype("datetime64[ns]").astype(np.int64)) for time in (bars.time, bars.closed_at))
    head = _HEAD.pack(*times, len(bars.close), len(names), bars.late, has_spread, 0)
    return head + names + bars.fillable.astype(np.bool_).tobytes() + np.array(tables, dtype="<f8").tobytes()


def unpack_bars(data: bytes) -> BarSet:
    """The bars that `pack_bars` wrote; its arrays cannot be changed."""
    time, closed_at, n_symbols, n_names, late, has_spread, _ = _HEAD.unpack_from(data)
    at = _HEAD.size
    names = json.loads(data[at : at + n_names]) if n_names else []
    at += n_names
    fillable = np.frombuffer(data, np.bool_, n_symbols, at)
    tables = np.frombuffer(data, "<f8", -1, at + n_symbols).reshape(-1, n_symbols)
    n_own = len(_PRICES) + has_spread
    prices = dict(zip(_PRICES, tables, strict=False))
    return BarSet(
        time=np.datetime64(time, "ns"),
        closed_at=np.datetime64(closed_at, "ns"),
        **prices,
        fillable=fillable,
        half_spread=tables[n_own - 1] if has_spread else None,
        columns=dict(zip(names, tables[n_own:], strict=True)),
        late=bool(late),
    )
