"""Join several files of one symbol: bid and ask files, and files of consecutive dates."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.market.asset_bars import PRICES, Asset, AssetBars, read_bars
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.plausibility import MOST_ASK_OVER_BID, outside_range, quote_side
from ml_pipeline.trading.market.tables import Faults, Table
from ml_pipeline.trading.market.times import as_text

# Most gaps between files that a message names.
_MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class Parts:
    """One asset in several tables, each with different dates."""

    assets: tuple[Asset, ...]

    @classmethod
    def of(cls, before: "Asset | Parts", asset: Asset) -> "Parts":
        """`before` with one more part."""
        return cls((*(before.assets if isinstance(before, Parts) else (before,)), asset))

    @property
    def symbol(self) -> str:
        """The same for all parts."""
        return self.assets[0].symbol

    @property
    def table(self) -> Table:
        """The table of the first part."""
        return self.assets[0].table

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the first part."""
        return self.assets[0].fields


@dataclass(frozen=True)
class QuotePair:
    """Bid bars and ask bars of one instrument."""

    symbol: str
    bid: Asset | Parts
    ask: Asset | Parts


def paired(assets: Mapping[str, Asset | Parts]) -> dict[str, Asset | Parts | QuotePair]:
    """The assets by symbol; two names that differ only by bid and ask become one asset, named without that word.

    Assets with quotes of both sides are unchanged.
    """
    names = pairs_among(symbol for symbol, asset in assets.items() if "ask" not in asset.fields)
    pairs = {name: QuotePair(name, assets[bid], assets[ask]) for name, (bid, ask) in names.items()}
    found: dict[str, Asset | Parts | QuotePair] = {}
    for symbol, asset in assets.items():
        pair = pairs.get(_without_side(symbol))
        if pair is None or asset not in (pair.bid, pair.ask):
            found[symbol] = asset
        elif pair.symbol in assets:
            raise UserError(
                f"{pair.symbol} is in one file, and {pair.bid.symbol} and {pair.ask.symbol} are its bid and ask; keep "
                "the pair, or the one file."
            )
        else:
            found[pair.symbol] = pair
    return found


def pairs_among(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """(bid name, ask name) of each two names that differ only by that word, by the name without it.

    >>> pairs_among(["EURUSD_bid", "GBPUSD_ask", "EURUSD_ask", "BTC"])
    {'EURUSD': ('EURUSD_bid', 'EURUSD_ask')}
    """
    sides: dict[str, dict[str, str]] = {}
    for name in names:
        if side := quote_side(name):
            sides.setdefault(_without_side(name), {})[side[1].lower()] = name
    return {name: (both["bid"], both["ask"]) for name, both in sides.items() if len(both) == 2}


def read_asset(asset: Asset | Parts | QuotePair, faults: Faults) -> AssetBars:
    """The bars of an asset, its parts or a pair. Raises UserError as `read_bars`, and if parts do not fit."""
    if isinstance(asset, Asset):
        return read_bars(asset, faults)
    if isinstance(asset, Parts):
        return _in_time(asset, [read_bars(part, faults) for part in asset.assets], faults)
    return _joined(asset.symbol, read_asset(asset.bid, faults), read_asset(asset.ask, faults), faults)


def _in_time(whole: Parts, parts: Sequence[AssetBars], faults: Faults) -> AssetBars:
    """The bars of all parts, oldest first; bars at the same time use the first value. Reports overlaps and gaps."""
    symbol, files = whole.symbol, [asset.table.name for asset in whole.assets]
    for file, part in zip(files, parts, strict=True):
        if part.fields.keys() != parts[0].fields.keys():
            raise UserError(f"{symbol} has different columns in {file} and in {files[0]}; give both the same columns.")
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(times, kind="stable")
    times = times[order]
    fields = {name: np.concatenate([part.fields[name] for part in parts])[order] for name in parts[0].fields}
    again = np.append(False, times[1:] == times[:-1])
    bar = np.cumsum(~again) - 1  # (rows,): the joined bar of each row
    nth = np.arange(len(times)) - np.flatnonzero(~again)[bar]
    kept = {name: values[~again] for name, values in fields.items()}
    other = np.zeros(len(times), dtype=bool)
    for i in range(1, nth.max() + 1):
        rows = np.flatnonzero(nth == i)
        for name, values in fields.items():
            first, second = kept[name][bar[rows]], values[rows]
            other[rows] |= (first != second) & ~np.isnan(first) & ~np.isnan(second)
            kept[name][bar[rows]] = np.where(np.isnan(first), second, first)
    if other.any():
        faults.add(
            f"{symbol} has {counted(int(other.sum()), 'bar')} with different values in two files, first at "
            f"{as_text(times[int(np.argmax(other))])}; keep these bars in one of the files."
        )
    days = [part.days for part in parts if part.days is not None]
    outside = [part.outside for part in parts if part.outside is not None]
    bars = AssetBars(
        symbol,
        times[~again],
        kept,
        next((part.bar_time for part in parts if part.bar_time), None),
        _notices_of(files, parts),
        np.concatenate(days)[order][~again] if len(days) == len(parts) else None,
        np.concatenate(outside)[order][~again] if len(outside) == len(parts) else None,
    )
    n_twice = int((nth == 1).sum())
    twice = f"; {counted(n_twice, 'bar')} {'was' if n_twice == 1 else 'were'} in two of them" if n_twice else ""
    bars.notices.append(f"{symbol}: {len(files)} files of consecutive dates were joined{twice}{_between(parts)}")
    return bars


def _notices_of(files: Sequence[str], parts: Sequence[AssetBars]) -> list[str]:
    """The notices of the parts; a notice of several parts appears once."""
    of_files: dict[str, list[str]] = {}
    for file, part in zip(files, parts, strict=True):
        for notice in part.notices:
            of_files.setdefault(notice.removeprefix(f"{file}: "), []).append(file)
    return [
        notice if len(those) > 1 and notice.startswith(parts[0].symbol) else f"{_first_of(those)}: {notice}"
        for notice, those in of_files.items()
    ]


def _first_of(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{files[0]} and {counted(len(files) - 1, 'other')}"


def _between(parts: Sequence[AssetBars]) -> str:
    """Gaps between parts that are longer than any gap within them, as the end of a sentence."""
    ordered = sorted(parts, key=lambda part: part.times[0])
    longest = max((np.diff(part.times).max() for part in parts if len(part.times) > 1), default=np.timedelta64(0, "ns"))
    ends = np.maximum.accumulate(np.array([part.times[-1] for part in ordered]))
    apart = [
        f"from {as_text(end)} to {as_text(part.times[0])}"
        for end, part in zip(ends[:-1], ordered[1:], strict=True)
        if part.times[0] - end > longest
    ]
    more = f" and {counted(len(apart) - _MOST_NAMED, 'other')}" if len(apart) > _MOST_NAMED else ""
    return f"; no bars {', '.join(apart[:_MOST_NAMED])}{more}" if apart else ""


def _joined(symbol: str, bid: AssetBars, ask: AssetBars, faults: Faults) -> AssetBars:
    """Mid prices at the times that both sides have, with half the spread of their closes."""
    times, of_bid, of_ask = np.intersect1d(bid.times, ask.times, assume_unique=True, return_indices=True)
    bids, asks = bid.fields["close"][of_bid], ask.fields["close"][of_ask]
    bad = (asks < bids) | (asks > MOST_ASK_OVER_BID * bids)
    if bad.any():
        i = int(np.argmax(bad))
        faults.add(
            f"{ask.symbol} and {bid.symbol} have {counted(int(bad.sum()), 'bar')} with impossible quotes, first at "
            f"{as_text(times[i])}: the ask is {asks[i]:g} and the bid {bids[i]:g}; fix or drop the bars in both files."
        )
        times, of_bid, of_ask = times[~bad], of_bid[~bad], of_ask[~bad]
    if not len(times):
        raise UserError(
            f"{bid.symbol} and {ask.symbol} have no bar at the same time; use bid and ask of the same dates."
        )
    fields = {name: (bid.fields[name][of_bid] + ask.fields[name][of_ask]) / 2 for name in PRICES}
    fields["half_spread"] = (ask.fields["close"][of_ask] - bid.fields["close"][of_bid]) / 2 / fields["close"]
    fields["volume"] = bid.fields["volume"][of_bid] + ask.fields["volume"][of_ask]
    for side, rows in ((bid, of_bid), (ask, of_ask)):
        fields |= {name: values[rows] for name, values in side.fields.items() if name.startswith(FEATURE_PREFIX)}
    alone = len(bid.times) + len(ask.times) - 2 * len(of_bid)
    left = f"; {counted(alone, 'bar')} of one side only {'was' if alone == 1 else 'were'} left out" if alone else ""
    notice = f"{symbol}: prices are the mid of {bid.symbol} and {ask.symbol}, volumes their sum{left}"
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
    """The symbol without the word bid or ask and the separators around it.

    >>> _without_side("EURUSD_bid"), _without_side("EURUSD_1H_ASK_2017"), _without_side("bid.EURUSD")
    ('EURUSD', 'EURUSD_1H_2017', 'EURUSD')
    """
    side = quote_side(symbol)
    if side is None:
        return symbol
    before, after = symbol[: side.start()], symbol[side.end() :]
    before, after = re.sub(r"[\W_]+$", "", before), re.sub(r"^[\W_]+", "", after)
    return f"{before}_{after}" if before and after else before or after or symbol
