"""Joins the files of bid bars and of ask bars of one instrument, such as EURUSD_bid.csv and EURUSD_ask.csv."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.asset import PRICES, Asset
from ml_pipeline.trading.market.asset_bars import AssetBars, read_bars
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.faults import Faults
from ml_pipeline.trading.market.plausibility import MOST_ASK_OVER_BID, outside_range, quote_side
from ml_pipeline.trading.market.times import as_text


@dataclass(frozen=True)
class QuotePair:
    """Bid bars and ask bars of one instrument."""

    symbol: str
    bid: Asset
    ask: Asset


def paired(assets: Mapping[str, Asset]) -> dict[str, Asset | QuotePair]:
    """The assets by symbol, with each two whose names differ by bid and ask alone as one, named without that word.

    Assets that have quotes of both sides stay as they are.
    """
    names = pairs_among(symbol for symbol, asset in assets.items() if "ask" not in asset.fields)
    pairs = {name: QuotePair(name, assets[bid], assets[ask]) for name, (bid, ask) in names.items()}
    found: dict[str, Asset | QuotePair] = {}
    for symbol, asset in assets.items():
        pair = pairs.get(_without_side(symbol))
        if pair is None or asset not in (pair.bid, pair.ask):
            found[symbol] = asset
        elif pair.symbol in assets:
            raise UserError(
                f"{pair.symbol} is a file of its own, and {pair.bid.symbol} and {pair.ask.symbol} are its bid and ask; "
                "keep the pair, or the one file."
            )
        else:
            found[pair.symbol] = pair
    return found


def pairs_among(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """(the name of the bid, that of the ask) of each two names that differ by that word alone, by the name without it.

    >>> pairs_among(["EURUSD_bid", "GBPUSD_ask", "EURUSD_ask", "BTC"])
    {'EURUSD': ('EURUSD_bid', 'EURUSD_ask')}
    """
    sides: dict[str, dict[str, str]] = {}
    for name in names:
        if side := quote_side(name):
            sides.setdefault(_without_side(name), {})[side[1].lower()] = name
    return {name: (both["bid"], both["ask"]) for name, both in sides.items() if len(both) == 2}


def read_asset(asset: Asset | QuotePair, faults: Faults) -> AssetBars:
    """The bars of the asset or of the pair. Raises UserError as `read_bars`."""
    if isinstance(asset, Asset):
        return read_bars(asset, faults)
    return _joined(asset.symbol, read_bars(asset.bid, faults), read_bars(asset.ask, faults), faults)


def _joined(symbol: str, bid: AssetBars, ask: AssetBars, faults: Faults) -> AssetBars:
    """Bars in the middle of both sides, at the times that both have, with half the spread of their closes."""
    times, of_bid, of_ask = np.intersect1d(bid.times, ask.times, assume_unique=True, return_indices=True)
    bids, asks = bid.fields["close"][of_bid], ask.fields["close"][of_ask]
    bad = (asks < bids) | (asks > MOST_ASK_OVER_BID * bids)
    if bad.any():
        i = int(np.argmax(bad))
        faults.add(
            f"{ask.symbol} and {bid.symbol} in {counted(int(bad.sum()), 'bar')}, first at {as_text(times[i])}: the ask "
            f"is {asks[i]:g} and the bid {bids[i]:g}, which no market quotes; fix or drop the bars in both files."
        )
        times, of_bid, of_ask = times[~bad], of_bid[~bad], of_ask[~bad]
    if not len(times):
        raise UserError(
            f"{bid.symbol} and {ask.symbol} have no bar at the same time; use bid and ask of the same days."
        )
    fields = {name: (bid.fields[name][of_bid] + ask.fields[name][of_ask]) / 2 for name in PRICES}
    fields["half_spread"] = (ask.fields["close"][of_ask] - bid.fields["close"][of_bid]) / 2 / fields["close"]
    fields["volume"] = bid.fields["volume"][of_bid] + ask.fields["volume"][of_ask]
    for side, rows in ((bid, of_bid), (ask, of_ask)):
        fields |= {name: values[rows] for name, values in side.fields.items() if name.startswith(FEATURE_PREFIX)}
    alone = len(bid.times) + len(ask.times) - 2 * len(of_bid)
    left = f"; {counted(alone, 'bar')} of one side alone left out" if alone else ""
    notice = (
        f"{symbol}: {bid.symbol} and {ask.symbol} are its two sides; prices are their middle, volumes their sum{left}"
    )
    days = None if bid.days is None else bid.days[of_bid]
    has_range = bid.outside is not None and ask.outside is not None
    return AssetBars(
        symbol,
        times,
        fields,
        bid.bar_time or ask.bar_time,
        [*bid.notices, *ask.notices, notice],
        days,
        outside_range(fields) if has_range else None,
    )


def _without_side(symbol: str) -> str:
    """The symbol without the word bid or ask and without the separators beside it.

    >>> _without_side("EURUSD_bid"), _without_side("EURUSD_1H_ASK_2017"), _without_side("bid.EURUSD")
    ('EURUSD', 'EURUSD_1H_2017', 'EURUSD')
    """
    side = quote_side(symbol)
    if side is None:
        return symbol
    before, after = symbol[: side.start()], symbol[side.end() :]
    before, after = re.sub(r"[\W_]+$", "", before), re.sub(r"^[\W_]+", "", after)
    return f"{before}_{after}" if before and after else before or after or symbol
