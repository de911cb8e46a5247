"""A market prepared for environments: prices and scaled features, computed once and shared by all environments."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.env_limit import env_pool_address
from ml_pipeline.trading.accounts.rules import FillAt, TradingRules
from ml_pipeline.trading.accounts.single import BarTables
from ml_pipeline.trading.envs.shared_folders import new_memory_map_folder, shared_folder
from ml_pipeline.trading.features.indicators import FeatureTable
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import FloatArray, MarketData


class _MappedFile(NamedTuple):
    path: str


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether the array is a whole mapped file, and not a view of a part of one."""
    return isinstance(array, np.memmap) and array.base is not None and not isinstance(array.base, np.ndarray)


@dataclass(frozen=True, eq=False)
class PreparedMarket:
    """The read-only market of environments.

    T bars, A assets, D features per bar. times: (T,). open, close: float64 (T, A); 0 before an asset's first bar, so
    that no NaN reaches an account: the asset is neither held nor traded there. tradable: bool (T, A),
    whether an order can be filled in the bar.
    features: float32 (T, D), scaled and clipped to -clip..clip: n_asset_features of each asset in turn, then those that
    all assets share.
    half_spread: float64 (T, A), half the quoted spread at the bar's close as a fraction of the price; None without
    quotes.
    session_end: bool (T,), the last bar of each session; None if that is not known.
    high, low: as open; None if no rule needs them. day: int64 (T,), the calendar day of each bar by the market's clock;
    None: that of its time.
    feature_names: of the D features; () if they have none.
    """

    symbols: tuple[str, ...]
    times: NDArray[np.datetime64]
    open: FloatArray
    close: FloatArray
    tradable: NDArray[np.bool_]
    features: NDArray[np.float32]
    clip: float
    periods_per_year: float
    half_spread: FloatArray | None = None
    n_asset_features: int = 1
    session_end: NDArray[np.bool_] | None = None
    high: FloatArray | None = None
    low: FloatArray | None = None
    day: NDArray[np.int64] | None = None
    feature_names: tuple[str, ...] = ()

    shared_between_environments: ClassVar[bool] = True

    @property
    def n_bars(self) -> int:
        return len(self.times)

    def bars(self, start: int, stop: int) -> "PreparedMarket":
        """A copy of the bars start..stop-1, through which no other bar can be reached."""
        rows = slice(start, stop)
        arrays: dict[str, Any] = {name: array[rows].copy() for name, array in self._arrays().items()}
        return replace(self, **arrays)

    def mapped(self) -> "PreparedMarket":
        """The same market in memory-mapped files, of which all processes share one copy in memory.

        If runs share one `EnvPool`, runs with the same bars share the files as well. The files are
        removed when the last process that uses them ends. If it is killed, the next call of any process removes them.
        """
        folder = None if env_pool_address() is None else shared_folder(self._fingerprint(), self._save)
        if folder is None:
            folder = new_memory_map_folder()
            self._save(folder)
        arrays: dict[str, Any] = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in self._arrays()}
        return replace(self, **arrays)

    def _save(self, folder: Path) -> None:
        for name, array in self._arrays().items():
            np.save(folder / f"{name}.npy", array)

    def _fingerprint(self) -> str:
        """Equal for equal arrays, of any process."""
        digest = hashlib.blake2b(digest_size=20)
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays().values())

    def __getstate__(self) -> dict[str, Any]:
        """Mapped arrays by the names of their files, others as they are."""
        mapped = {name: _MappedFile(array.filename) for name, array in self._arrays().items() if _is_mapped(array)}
        return {**self.__dict__, **mapped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            array = np.load(value.path, mmap_mode="r") if isinstance(value, _MappedFile) else value
            object.__setattr__(self, name, array)

    def assets(self, columns: NDArray[np.int64]) -> "PreparedMarket":
        """The market with only these assets; the features stay as they are."""
        of_assets = ("open", "high", "low", "close", "tradable", "half_spread")
        arrays: dict[str, Any] = {
            name: array[:, columns] for name, array in self._arrays().items() if name in of_assets
        }
        return replace(self, symbols=tuple(self.symbols[i] for i in columns), **arrays)

    def fill_tables(self, fill_at: FillAt) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """(prices, half-spreads, whether fills are possible), each (T - 1, A); row t: an order decided at bar t.

        No order is filled if its asset has no bar, or in the asset's first bar, which was unknown at the decision.
        """
        spreads = np.broadcast_to(0.0, self.close.shape) if self.half_spread is None else self.half_spread
        if fill_at == "close":
            return self.close[:-1], spreads[:-1], self.tradable[:-1]
        return self.open[1:], spreads[:-1], self.tradable[1:] & (self.close[:-1] > 0)

    def closings(self, fill_at: FillAt) -> NDArray[np.bool_]:
        """bool (T - 1,), whether an order decided at bar t is the last to be filled in its session.

        Raises UserError if sessions are not known, or if every bar is one.
        """
        ends = _required_sessions(self.session_end)
        return ends[1:] if fill_at == "next_open" else ends[:-1]

    def bar_tables(self, rules: TradingRules) -> BarTables | None:
        """The bar after each order, for accounts that trade within bars; None if these rules do not.

        Raises UserError if the rules need the range of the bars, and there is none.
        """
        if not rules.acts_within_bars:
            return None
        low, high = self.low, self.high
        if low is None or high is None:
            if rules.needs_range is not None:
                raise UserError(f"{rules.needs_range} needs the high and low of each bar, but the market has none.")
            low = high = self.close  # unused
        return BarTables(self.open[1:], low[1:], high[1:], self.tradable[1:], self._days_charged(rules)[:, None])

    def _days_charged(self, rules: TradingRules) -> FloatArray:
        """The calendar days between the two bars after bar t, (T - 1,), 0 at the end; 1 if rates are per bar."""
        if rules.financing_bps_per_year is None:
            return np.ones(self.n_bars - 1)
        day = self.times.astype("datetime64[D]").astype(np.int64) if self.day is None else self.day
        return np.append(np.diff(day[1:]), 0).astype(np.float64)

    def _arrays(self) -> dict[str, Any]:
        more = ("features", "half_spread", "session_end", "day")
        names = ("times", "open", "high", "low", "close", "tradable", *more)
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def prepare_market(
    market: MarketData, features: FeatureTable, scaler: FeatureScaler, rules: TradingRules | None = None
) -> PreparedMarket:
    """The prices of `market` that accounts under `rules` need, and `features` scaled by `scaler`.

    Raises UserError if the rules need the range of bars, but an asset's highs or lows all equal its closes.
    """
    needing = None if rules is None else rules.needs_range
    by_day = rules is not None and rules.financing_bps_per_year is not None
    if needing is not None:
        _require_ranges(market, needing)
    return PreparedMarket(
        symbols=market.symbols,
        times=market.times,
        open=np.nan_to_num(market.open, nan=0.0),
        close=np.nan_to_num(market.close, nan=0.0),
        tradable=market.fillable,
        features=scaler(features.values),
        clip=scaler.clip,
        periods_per_year=market.periods_per_year,
        half_spread=market.half_spread,
        n_asset_features=features.n_asset_features,
        session_end=market.session_end,
        high=None if needing is None else np.nan_to_num(market.high, nan=0.0),
        low=None if needing is None else np.nan_to_num(market.low, nan=0.0),
        day=market.timing.clock.days(market.timing.opens(market.times))[0] if by_day else None,
        feature_names=features.columns,
    )


def require_what_rules_need(market: MarketData, rules: TradingRules) -> None:
    """Raise UserError, as environments do, if the rules need high and low or sessions that `market` lacks."""
    if rules.needs_range is not None:
        _require_ranges(market, rules.needs_range)
    if rules.flat_at_close:
        _required_sessions(market.session_end)


def _required_sessions(session_end: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    if session_end is None or session_end.all():
        raise UserError("flat_at_close needs bars shorter than a session; use shorter bars, or leave it out.")
    return session_end


def _require_ranges(market: MarketData, needing: str) -> None:
    """Without highs or lows, data have the closes in their place, see `market_from_arrays`."""
    for name in ("high", "low"):
        same = (getattr(market, name) == market.close) | ~market.tradable
        for symbol in np.array(market.symbols)[same.all(axis=0)]:
            raise UserError(
                f"{needing} needs the high and low of each bar, but every {name} of {symbol} equals its close, as in "
                f"data without {name}s; use data with both, or leave {needing} out."
            )
