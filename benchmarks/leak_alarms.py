"""How often honest columns of made markets are taken for leaks, and which leaks are found, for each test by itself.

python benchmarks/leak_alarms.py --n-markets 200

Each kind of market is made in days and in minutes of sessions of 390. Besides, it prints how long 40 columns of 100,000
minutes take.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import text_table
from ml_pipeline.trading.features.foresight import foresight
from ml_pipeline.trading.features.indicators import bars_of
from ml_pipeline.trading.features.innovations import Innovations, innovations
from ml_pipeline.trading.features.later_figures import LaterFigures
from ml_pipeline.trading.features.period_ends import Periods, periods_of, told_of_period
from ml_pipeline.trading.market.data import MarketData, market_from_arrays

Array = NDArray[np.float64]
KINDS = ("random walk, Student t", "mean reversion", "bid-ask bounce", "momentum", "clustered volatility")
TESTS = ("leads, sums and bits", "ends of periods", "figures of later bars")
SESSION = 390


def made_market(kind: str, seed: int, *, minutes: bool, n_bars: int) -> MarketData:
    """Prices with tails of Student's t with 3 degrees of freedom, volume that clusters, sessions shaped like a U."""
    generator = np.random.default_rng((KINDS.index(kind), seed, minutes))
    deviation = 0.0005 if minutes else 0.01
    shocks = deviation * generator.standard_t(3, n_bars) / np.sqrt(3)
    if kind == "mean reversion":
        returns = np.diff(_autoregressive(shocks, 0.6), prepend=0.0)
    elif kind == "bid-ask bounce":
        returns = 0.3 * shocks + np.diff(deviation * generator.choice([-1.0, 1.0], n_bars), prepend=0.0)
    elif kind == "momentum":
        drift = _autoregressive(0.03 * deviation * generator.standard_normal(n_bars), 0.98)
        returns = _autoregressive(shocks + drift, 0.15)
    elif kind == "clustered volatility":
        returns = shocks * np.exp(_autoregressive(0.2 * generator.standard_normal(n_bars), 0.98))
    else:
        returns = shocks
    number = np.arange(n_bars)
    season = np.ones(n_bars)
    times = np.busday_offset("2000-01-03", number).astype("datetime64[ns]")
    if minutes:
        season = 1 + np.abs(2 * (number % SESSION) / SESSION - 1)
        days = np.busday_offset("2020-01-06", number // SESSION).astype("datetime64[m]")
        times = (days + (570 + number % SESSION).astype("timedelta64[m]")).astype("datetime64[ns]")
    close = 100 * np.exp(np.cumsum(returns * season))
    opened = np.append(close[:1], close[:-1]) * np.exp(0.1 * deviation * generator.standard_normal(n_bars))
    beyond = np.exp(np.abs(0.5 * deviation * generator.standard_normal((2, n_bars))))
    activity = _autoregressive(0.3 * generator.standard_normal(n_bars), 0.9) + 0.4 * np.abs(returns) / deviation
    return market_from_arrays(
        ["MADE"],
        times,
        close,
        open=opened,
        high=np.maximum(opened, close) * beyond[0],
        low=np.minimum(opened, close) / beyond[1],
        volume=np.exp(10 + activity) * season,
    )


def honest_columns(market: MarketData, seed: int) -> dict[str, Array]:
    """Columns whose values were known when their bars closed, NaN before their first."""
    generator = np.random.default_rng(seed)
    close, high, low, volume = (getattr(market, name)[:, 0] for name in ("close", "high", "low", "volume"))
    prices, n = np.log(close), market.n_bars
    returns = np.diff(prices, prepend=prices[:1])
    deviation = _rolling(returns, 50, np.std)
    columns = {
        "close": close,
        "range": high - low,
        "volume": volume,
        "volume of the bar before": _shifted(volume, 1),
        **{f"return over {span}": prices - _shifted(prices, span) for span in (1, 5, 60)},
        "mean of 20": _rolling(close, 20, np.mean),
        "distance from the mean of 100": prices - _rolling(prices, 100, np.mean),
        "deviation of 50": deviation,
        "volatility regime": (deviation > np.nanmedian(deviation)) * 1.0,
        "trend": np.sign(close - _rolling(close, 50, np.mean)),
        "relative strength": _strength(close),
        "noise": generator.standard_normal(n),
        "walk": np.cumsum(generator.standard_normal(n)),
        "label": generator.integers(0, 2, n) * 1.0,
        "time of day": np.sin(market.times.astype("datetime64[m]").astype(np.int64) % 1440 / 229.2),
        "day of the week": _weekday(market) * 1.0,
    }
    for name, of in periods_of_bars(market).items():
        whole = Whole(market, of)
        columns |= {
            f"{name} number": of * 1.0,
            f"close of the {name} before": _shifted(whole.closed, 1)[of],
            f"return of the {name} before": _shifted(whole.returns, 1)[of],
            f"range of the {name} before": _shifted(whole.ranges, 1)[of],
            f"volume of the {name} before": _shifted(whole.volume, 1)[of],
            f"strength at the {name} before": _shifted(_strength(whole.closed), 1)[of],
            f"open of the {name}": whole.opened[of],
            f"gap at the start of the {name}": np.log(whole.opened / _shifted(whole.closed, 1))[of],
            f"fundamental, each {name}": np.cumsum(generator.standard_normal(len(whole.closed)))[of],
            f"label, each {name}": generator.integers(0, 2, len(whole.closed))[of] * 1.0,
        }
    return columns


def leaking_columns(market: MarketData) -> dict[str, Array]:
    """Columns that were made from later bars."""
    close, high, low, volume = (getattr(market, name)[:, 0] for name in ("close", "high", "low", "volume"))
    prices = np.log(close)
    columns = {}
    for span in (1, 5, 20, 60, 240, 250, 1440):
        if span * 3 > market.n_bars:
            continue
        ahead = _shifted(prices[::-1], span)[::-1] - prices
        columns |= {
            f"return over the next {span}": ahead,
            f"up over the next {span}": np.where(np.isnan(ahead), np.nan, ahead > 0),
            f"close {span} later": np.exp(prices + ahead),
            f"volume over the next {span}": _shifted(_rolling(volume[::-1], span, np.mean), 1)[::-1],
            f"range over the next {span}": np.log(
                _shifted(_rolling(high[::-1], span, np.max), 1) / _shifted(_rolling(low[::-1], span, np.min), 1)
            )[::-1],
        }
    for name, of in periods_of_bars(market).items():
        whole = Whole(market, of)
        columns |= {
            f"close of the {name}": whole.closed[of],
            f"return of the {name}": whole.returns[of],
            f"range of the {name}": whole.ranges[of],
            f"volume of the {name}": whole.volume[of],
            f"{name} closes up": (whole.returns > 0)[of] * 1.0,
            f"strength at the end of the {name}": _strength(whole.closed)[of],
            f"way to the close of the {name}": np.log(whole.closed[of] / close),
        }
    return columns


class Whole:
    """Figures of whole periods, (P,) each. of: (T,), the period of each bar."""

    def __init__(self, market: MarketData, of: NDArray[np.int64]) -> None:
        first = np.flatnonzero(np.diff(of, prepend=-1))
        last = np.append(first[1:], market.n_bars) - 1
        self.opened, self.closed = market.open[first, 0], market.close[last, 0]
        self.returns = np.log(self.closed / self.opened)
        high = np.maximum.reduceat(market.high[:, 0], first)
        self.ranges = np.log(high / np.minimum.reduceat(market.low[:, 0], first))
        self.volume = np.add.reduceat(market.volume[:, 0], first)


def periods_of_bars(market: MarketData) -> dict[str, NDArray[np.int64]]:
    """The number of each bar's period, (T,): of its week and, in minutes, of its hour and day."""
    hours = market.times.astype("datetime64[h]").astype(np.int64)
    keys = {"hour": hours, "day": hours // 24, "week": (hours // 24 + 3) // 7}
    numbers = {name: np.unique(key, return_inverse=True)[1] for name, key in keys.items()}
    return {name: of for name, of in numbers.items() if 5 <= of[-1] < market.n_bars / 3}


def _weekday(market: MarketData) -> NDArray[np.int64]:
    return (market.times.astype("datetime64[D]").astype(np.int64) + 3) % 7


def _autoregressive(shocks: Array, coefficient: float) -> Array:
    values = np.empty_like(shocks)
    value = 0.0
    for t, shock in enumerate(shocks.tolist()):
        values[t] = value = coefficient * value + shock
    return values


def _rolling(values: Array, span: int, figure: Callable[..., Array]) -> Array:
    made = np.full(len(values), np.nan)
    made[span - 1 :] = figure(np.lib.stride_tricks.sliding_window_view(values, span), axis=-1)
    return made


def _shifted(values: Array, n: int) -> Array:
    return np.concatenate([np.full(n, np.nan), values[: len(values) - n]])


def _strength(close: Array) -> Array:
    change = np.diff(close, prepend=close[:1])
    up, down = _autoregressive(np.maximum(change, 0.0), 13 / 14), _autoregressive(np.maximum(-change, 0.0), 13 / 14)
    return 100 * up / (up + down + 1e-12)


def prepared(market: MarketData) -> tuple[Innovations, list[Periods]]:
    known = innovations(bars_of(market, 0))
    return known, periods_of(known, market.timing)


def alarms(market: MarketData, columns: dict[str, Array]) -> dict[str, set[str]]:
    """By test, the columns that it refuses or warns of."""
    known, periods = prepared(market)
    first = {name for name, values in columns.items() if foresight(values, known)}
    second = {name for name, values in columns.items() if told_of_period(values, known, periods)}
    later = LaterFigures(known, periods)
    third = {name for name, values in columns.items() if later.told(values)}
    return dict(zip(TESTS, (first, second, third), strict=True))


def _seconds(n_columns: int, n_bars: int) -> float:
    market = made_market(KINDS[0], 0, minutes=True, n_bars=n_bars)
    columns = list(honest_columns(market, 0).values())[:n_columns]
    begin = time.perf_counter()
    alarms(market, {str(i): columns[i % len(columns)] for i in range(n_columns)})
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-markets", type=int, default=200)
    arguments = parser.parse_args()
    rows = [["market", "bars", "columns", *TESTS, "markets with an alarm"]]
    missed = []
    for minutes, n_bars in ((False, 1_000), (True, 20 * SESSION)):
        for kind in KINDS:
            counts: Counter[str] = Counter()
            n_columns, with_alarm = 0, 0
            for seed in range(arguments.n_markets):
                market = made_market(kind, seed, minutes=minutes, n_bars=n_bars)
                columns = honest_columns(market, seed)
                found = alarms(market, columns)
                n_columns += len(columns)
                with_alarm += any(found.values())
                counts.update({test: len(names) for test, names in found.items()})
                for names in found.values():
                    counts.update(names)
            bars = f"{n_bars:,} {'minutes' if minutes else 'days'}"
            shown = [f"{counts[test]} ({counts[test] / n_columns:.3%})" for test in TESTS]
            rows.append([kind, bars, f"{n_columns:,}", *shown, f"{with_alarm} of {arguments.n_markets}"])
            print(*rows[-1], {name: n for name, n in counts.items() if name not in TESTS}, sep=" | ", flush=True)
            market = made_market(kind, 0, minutes=minutes, n_bars=n_bars)
            leaks = leaking_columns(market)
            unseen = set(leaks) - set.union(*alarms(market, leaks).values())
            missed.append(f"{kind}, {bars}: {len(leaks) - len(unseen)} of {len(leaks)} leaks; not {sorted(unseen)}")
    print(text_table(rows), *missed, sep="\n")
    print(f"40 columns of 100,000 minutes: {_seconds(40, 100_000):.1f} s")


if __name__ == "__main__":
    main()
