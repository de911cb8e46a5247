"""Guards on bars: impossible prices, old bars, a wrong clock, a closed market, a short session, halted symbols."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import lasting
from ml_pipeline.live.brokers.broker import TradingSession
from ml_pipeline.live.risk.config import Response
from ml_pipeline.live.risk.guard import ROUNDING, TRADE, Guard, Moment, Refusal, Verdict, blocking
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.times import as_text

_PRICES = ("open", "high", "low", "close")
_FEWEST_CHANGES = 20
"""Smallest number of changes for a standard deviation; with fewer, it is not used."""
_MEMORY = 100
"""Approximate number of bars over which deviations are averaged."""


class ImpossiblePrices(Guard):
    """Prices that are NaN, infinite, zero or negative, a high below the low, or an impossible volume or spread."""

    name = "impossible_price"

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = symbols

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        return blocking(self._found(bars))

    def _found(self, bars: BarSet) -> Iterator[Refusal]:
        # A symbol without a bar has NaN prices, which are not refused.
        has_bar = ~(np.isnan(bars.open) & np.isnan(bars.high) & np.isnan(bars.low) & np.isnan(bars.close))
        told = np.zeros(len(self._symbols), dtype=bool)
        checks: list[tuple[str, FloatArray, NDArray[np.bool_]]] = []
        for field in _PRICES:
            values: FloatArray = getattr(bars, field)
            checks.append((field, values, ~(np.isfinite(values) & (values > 0.0))))
        checks.append(("high", bars.high, bars.high < bars.low))
        checks.append(("volume", bars.volume, ~(np.isfinite(bars.volume) & (bars.volume >= 0.0))))
        for field, values, wrong in checks:
            for i in map(int, np.flatnonzero(wrong & has_bar & ~told)):
                told[i] = True
                below = f", below its low of {bars.low[i]:g}" if field == "high" and values[i] < bars.low[i] else ""
                sentence = f"{self._symbols[i]} is not traded on this bar: its {field} is {values[i]:g}{below}."
                yield Refusal(self.name, self._symbols[i], float(values[i]), float("nan"), sentence)


class CrossedQuotes(Guard):
    """Quotes with the bid above the ask, or impossibly far below it. A missing quote (NaN) is not refused."""

    name = "crossed_quotes"

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = symbols

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        if bars.half_spread is None:
            return blocking(())
        wrong = ~((bars.half_spread >= 0.0) & (bars.half_spread < 1.0)) & ~np.isnan(bars.half_spread) & bars.present
        return blocking(self._refusal(int(i), float(bars.half_spread[i])) for i in np.flatnonzero(wrong))

    def _refusal(self, i: int, half_spread: float) -> Refusal:
        symbol = self._symbols[i]
        if half_spread < 0.0:
            what = f"its bid is above its ask by {-2 * half_spread:.4g} of the price"
        else:
            what = f"half its quoted spread is {half_spread:g} of the price"
        return Refusal(self.name, symbol, half_spread, 0.0, f"{symbol} is not traded on this bar: {what}.")


def without(bars: BarSet, refusals: Iterable[Refusal], symbols: Sequence[str]) -> BarSet:
    """The bars without the prices or quotes that were refused."""
    refused = list(refusals)
    if not refused:
        return bars
    no_bar, no_quote = (
        np.isin(symbols, [str(refusal.symbol) for refusal in refused if refusal.guard == guard.name])
        for guard in (ImpossiblePrices, CrossedQuotes)
    )
    prices: dict[str, Any] = {field: np.where(no_bar, np.nan, getattr(bars, field)) for field in _PRICES}
    spread = None if bars.half_spread is None else np.where(no_bar | no_quote, np.nan, bars.half_spread)
    return replace(
        bars,
        **prices,
        volume=np.where(no_bar, 0.0, bars.volume),
        fillable=bars.fillable & ~no_bar,
        half_spread=spread,
    )


class PriceJump(Guard):
    """A close that is too far from the previous one, as a fraction of it or in deviations of earlier changes; after a
    split, from the previous one in the new prices.

    Each close is compared with the previous one, so a true jump blocks a symbol for one bar, and a wrong price for two.
    Deviations are of changes per bar around 0, averaged exponentially over about 100 bars; a change beyond the limit
    counts as one at the limit.
    """

    name = "guard_price_jump"

    def __init__(
        self, symbols: Sequence[str], *, fraction: float | None = None, deviations: float | None = None
    ) -> None:
        self._symbols = tuple(symbols)
        self._fraction = fraction
        self._deviations = deviations
        self._last = np.full(len(symbols), np.nan)
        self._variance = np.zeros(len(symbols))
        self._changes = np.zeros(len(symbols), dtype=np.int64)

    def note_history(self, bars: BarSet) -> None:
        self._learn(bars)

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        before = self._last.copy()
        deviation = np.where(self._changes >= _FEWEST_CHANGES, np.sqrt(self._variance), np.nan)
        self._learn(bars)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            moved = np.abs(bars.close - before)
            too_far = np.zeros(len(before), dtype=bool)
            if self._fraction is not None:
                too_far |= moved > self._fraction * before * (1 + ROUNDING)
            if self._deviations is not None:
                too_far |= (moved > self._deviations * deviation * before * (1 + ROUNDING)) & (deviation > 0.0)
        found = np.flatnonzero(too_far)
        return blocking(self._refusal(int(i), bars.close[i], before[i], deviation[i]) for i in found)

    def note_split(self, symbol: str, factor: float) -> None:
        self._last = np.where(np.isin(self._symbols, symbol), self._last * factor, self._last)

    def _learn(self, bars: BarSet) -> None:
        usable = np.isfinite(bars.close) & (bars.close > 0.0)
        known = usable & np.isfinite(self._last)
        with np.errstate(invalid="ignore", over="ignore"):
            change = np.where(known, bars.close / np.where(known, self._last, 1.0) - 1.0, 0.0)
        if self._deviations is not None:
            # One wrong price must not disable the guard for the next hundred bars.
            largest = self._deviations * np.sqrt(self._variance)
            limited = (self._changes >= _FEWEST_CHANGES) & (self._variance > 0.0)
            change = np.where(limited, np.clip(change, -largest, largest), change)
        self._changes += known
        share = 1.0 / np.clip(self._changes, 1, _MEMORY)
        with np.errstate(over="ignore"):
            self._variance = np.where(known, self._variance + share * (change**2 - self._variance), self._variance)
        self._last = np.where(usable, bars.close, self._last)

    def _refusal(self, i: int, close: float, before: float, deviation: float) -> Refusal:
        symbol = self._symbols[i]
        change = close / before - 1.0
        what = (
            f"{symbol} is not traded on this bar: its close went from {before:.10g} to {close:.10g}, by {change:+.4%}"
        )
        fraction = self._fraction
        if fraction is not None and abs(close - before) > fraction * before * (1 + ROUNDING):
            sentence = f"{what}, and guard_price_jump allows {fraction:.4%}."
            return Refusal(self.name, symbol, abs(change), fraction, sentence)
        allowed = self._deviations or 0.0
        sentence = f"{what} or {abs(change) / deviation:.4g} deviations, and {self.name}_deviations allows {allowed:g}."
        return Refusal(f"{self.name}_deviations", symbol, abs(change) / deviation, allowed, sentence)

    def state(self) -> dict[str, Any]:
        closes = [None if np.isnan(close) else float(close) for close in self._last]
        state = zip(closes, self._variance.tolist(), self._changes.tolist(), strict=True)
        return {symbol: list(each) for symbol, each in zip(self._symbols, state, strict=True)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for i, symbol in enumerate(self._symbols):
            close, variance, changes = state.get(symbol, (None, 0.0, 0))
            self._last[i] = np.nan if close is None else close
            self._variance[i], self._changes[i] = variance, changes


_SECOND = np.timedelta64(1, "s")
_SHORTER = 0.9
"""A session shorter than this fraction of the usual length ends early."""


def usual_length_s(sessions: Sequence[TradingSession]) -> float | None:
    """The median length of sessions, in seconds; None without any."""
    lengths = [_seconds(session.closes - session.opens) for session in sessions]
    return float(np.median(lengths)) if lengths else None


class StaleData(Guard):
    """Bars that closed too long ago, bars that arrived after the next one had opened, or a wrong clock."""

    name = "guard_stale_s"

    def __init__(self, oldest_s: float) -> None:
        self._oldest_s = oldest_s

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        age_s = _seconds(moment.now - bars.closed_at)
        if bars.late:
            sentence = f"Nothing is ordered: the bars arrived {lasting(age_s)} after their close, too late for orders."
        elif np.isnan(age_s) or age_s > self._oldest_s:
            sentence = (
                f"Nothing is ordered: the bars closed {lasting(age_s)} ago, and {self.name} is {self._oldest_s:g} s."
            )
        elif age_s < -self._oldest_s:
            sentence = (
                f"Nothing is ordered: the bars close {lasting(-age_s)} from now by the broker's clock, so one of the "
                f"clocks is wrong; {self.name} is {self._oldest_s:g} s."
            )
        else:
            return TRADE
        return Verdict((Refusal(self.name, None, age_s, self._oldest_s, sentence),), "hold")


class WrongClock(Guard):
    """A clock that differs from the broker's: bars then close too early or too late, and their age is unknown."""

    name = "guard_clock_s"

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        if abs(moment.clock_ahead_s) <= self._most_s:
            return TRADE
        how = "ahead of" if moment.clock_ahead_s > 0 else "behind"
        sentence = (
            f"Nothing is ordered: this machine's clock is {lasting(abs(moment.clock_ahead_s))} {how} the broker's, and "
            f"{self.name} is {self._most_s:g} s."
        )
        return Verdict((Refusal(self.name, None, moment.clock_ahead_s, self._most_s, sentence),), "hold")


class ClosedMarket(Guard):
    """Bars outside the market's session. Orders of its last bar may be filled when it opens again."""

    name = "closed_market"

    def __init__(self, bar_ns: int) -> None:
        """bar_ns: the length of a bar."""
        self._bar = np.timedelta64(bar_ns, "ns")

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        session = moment.session
        if session is None or (session.opens < bars.closed_at and bars.closed_at - self._bar < session.closes):
            return TRADE
        early = bars.closed_at <= session.opens
        edge = session.opens if early else session.closes
        sentence = (
            f"Nothing is ordered: the bars closed at {as_text(bars.closed_at)} UTC, when the market was closed; "
            f"the nearest session {'begins' if early else 'ended'} at {as_text(edge)} UTC."
        )
        far_s = abs(_seconds(bars.closed_at - edge))
        return Verdict((Refusal(self.name, None, far_s, 0.0, sentence),), "hold")


class HalfDay(Guard):
    """A market session that is shorter than usual: by the setting, report it once, or hold or close positions."""

    name = "guard_half_day"

    def __init__(self, response: Response, usual_s: float | None) -> None:
        """usual_s: usual length of a session in seconds; None: the longest one so far."""
        self._response = response
        self._known_s = usual_s
        self._longest_s = 0.0
        self._told: np.datetime64 | None = None

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        session = moment.session
        if session is None:
            return TRADE
        length_s = _seconds(session.closes - session.opens)
        self._longest_s = max(self._longest_s, length_s)
        usual_s = self._known_s or self._longest_s
        if length_s >= _SHORTER * usual_s or (self._response == "warn" and self._told == session.opens):
            return TRADE
        self._told = session.opens
        done = {"warn": "", "hold": "; positions are held", "flatten": "; positions are closed"}[self._response]
        sentence = (
            f"The market closes early, at {as_text(session.closes)} UTC: its session lasts {length_s / 3_600:.4g} h, "
            f"usually {usual_s / 3_600:.4g} h{done}."
        )
        told = Refusal(self.name, None, length_s, usual_s, sentence, warning=self._response == "warn")
        return Verdict((told,), "trade" if self._response == "warn" else self._response)

    def state(self) -> dict[str, Any]:
        return {"longest_s": self._longest_s, "told": None if self._told is None else str(self._told)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._longest_s = state["longest_s"]
        self._told = None if state["told"] is None else np.datetime64(state["told"])


def _seconds(span: np.timedelta64) -> float:
    return float(span / _SECOND)


class Halts(Guard):
    """Blocks symbols while they are halted."""

    name = "guard_halt_bars"

    def __init__(self, symbols: Sequence[str], *, missing_bars: int | None = None) -> None:
        """missing_bars: number of missing bars after which a symbol counts as halted; None: never."""
        self._symbols = tuple(symbols)
        self._limit = missing_bars
        self._missing = np.zeros(len(symbols), dtype=np.int64)

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        self._missing = np.where(bars.present, 0, self._missing + 1)
        found = []
        for i in np.flatnonzero(self._missing >= self._limit) if self._limit is not None else ():
            symbol, missing = self._symbols[i], int(self._missing[i])
            sentence = (
                f"{symbol} is not traded until its next bar: it had none for {missing:,} bars, and counts as halted "
                f"after {self._limit:,} ({self.name})."
            )
            found.append(Refusal(self.name, symbol, float(missing), float(self._limit or 0), sentence))
        return blocking(found)

    def state(self) -> dict[str, Any]:
        return {"missing": dict(zip(self._symbols, self._missing.tolist(), strict=True))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._missing = np.array([state["missing"].get(symbol, 0) for symbol in self._symbols], dtype=np.int64)
