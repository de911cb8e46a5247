"""The trading state in a checkpoint, and the settings for using the policy on other data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.features.scaling import FeatureRanges, FeatureScaler
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.splits import Split
from ml_pipeline.trading.market.timeframes import Times, length_in_words
from ml_pipeline.trading.settings import TradingConfig

RANGES_KEY = "feature_ranges"
"""Key in a task's state; checkpoints of older versions lack it."""
TRAINED_BARS_KEY = "trained_bars"
"""Key in a task's state; checkpoints of older versions lack it."""
EACH_SYMBOL_KEY = "each_symbol"
"""Key in the state of a task with a separate account per symbol."""


_LATER_KEYS = frozenset({RANGES_KEY, TRAINED_BARS_KEY})


class TrainedBars(NamedTuple):
    """The bars of the training split: times of the first and last as in the data, usual length in ns, and symbols."""

    first: str
    last: str
    length_ns: int
    symbols: tuple[str, ...]

    @classmethod
    def of(cls, market: MarketData, split: Split) -> "TrainedBars":
        first, last = (str(market.times[row].astype("datetime64[ns]")) for row in (split.start, split.stop - 1))
        return cls(first, last, market.timing.length, market.symbols)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TrainedBars | None":
        """The bars in a `TradedMarket.state`; None if the state is of an older version."""
        try:
            first, last, length, symbols = state[TRAINED_BARS_KEY]
            return cls(str(np.datetime64(first)), str(np.datetime64(last)), int(length), tuple(symbols))
        except (KeyError, TypeError, ValueError):
            return None

    def state(self) -> list[Any]:
        """As primitives and lists, for a checkpoint."""
        return [self.first, self.last, self.length_ns, [*self.symbols]]

    def about(self, market: MarketData, times: Times) -> tuple[str, ...]:
        """Sentences if bars of a market at these times were used in training, or have a different length."""
        said = []
        if market.timing.length != self.length_ns:
            trained, given = (length_in_words(length) for length in (self.length_ns, market.timing.length))
            said.append(
                f"the policy was trained on bars of {trained}, but these bars have {given}, so a feature of N bars "
                "covers a different span of time"
            )
        inside = (times >= np.datetime64(self.first)) & (times <= np.datetime64(self.last))
        if {*market.symbols} & {*self.symbols} and inside.any():
            said.append(
                f"{np.count_nonzero(inside):,} of the {counted(len(times), 'bar')} were used in training (from "
                f"{self.first[:16]} to {self.last[:16]}), so the policy's result there is no evidence for unseen bars"
            )
        return tuple(said)


class TrainedState(NamedTuple):
    """The trading state of a trained policy.

    config: settings with observations and actions as in training. symbols, scaler: those of training. ranges, bars:
    None if the checkpoint is of an older version.
    """

    config: TradingConfig
    symbols: tuple[str, ...]
    scaler: FeatureScaler
    ranges: FeatureRanges | None
    bars: TrainedBars | None = None

    def symbols_on(self, available: Sequence[str]) -> tuple[str, ...]:
        """The symbols that the policy trades in some data: those of its training, if all of them are available.

        available: the symbols in the settings, or all in the data. Raises UserError if their number differs.
        """
        trained = self.symbols
        chosen = trained if not self.config.symbols and {*trained} <= {*available} else tuple(available)
        if len(chosen) != len(trained):
            raise UserError(
                f"The policy was trained on {counted(len(trained), 'symbol')} ({', '.join(trained)}), but the data "
                f"have {len(chosen)} ({', '.join(chosen)}); use data with the same number of symbols."
            )
        return chosen


def read_state(state: Mapping[str, Any], config: TradingConfig) -> TrainedState:
    """Read the result of `TradedMarket.state`, with the remaining settings from `config`.

    Raises UserError if it is not such a state.
    """
    try:
        as_trained = {name: state[name] for name in ("window", "action_mode", "allow_short")}
        config = replace(config, features=tuple(state["features"]), **as_trained)
        symbols, scaler = tuple(state["symbols"]), FeatureScaler.from_state(state["scaler"])
    except (KeyError, TypeError) as error:
        raise UserError(f"This is not the state of a trading task: {error!r}.") from error
    ranges = FeatureRanges.from_state(state[RANGES_KEY]) if RANGES_KEY in state else None
    return TrainedState(config, symbols, scaler, ranges, TrainedBars.from_state(state))


def under_conditions(
    trained: TradingConfig, changes: Mapping[str, Any], *, on_other_data: bool | None = None
) -> TradingConfig:
    """The settings of a training with some of its market conditions changed.

    changes: settings by name. on_other_data: whether to reset settings that describe the training data (symbols,
    columns, times, bars per year) unless `changes` sets them; None: if `changes` sets data. A changed fee also applies
    to sales.
    """
    own: dict[str, Any] = {"symbols": (), "periods_per_year": None}  # settings that describe the training data
    own |= {"bar_time": None, "columns": {}, "date_order": None}
    of_data: dict[str, Any] = own if ("data" in changes if on_other_data is None else on_other_data) else {}
    of_fees: dict[str, Any] = {"sell_fee_bps": None} if "fee_bps" in changes else {}
    return replace(trained, **{**of_data, **of_fees, **changes})


def as_saved(state: Mapping[str, Any], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` without keys that a checkpoint of an older version lacks, for a comparison of the two."""
    if EACH_SYMBOL_KEY in state:
        before = saved.get(EACH_SYMBOL_KEY, {})
        each = {name: as_saved(own, before.get(name, own)) for name, own in state[EACH_SYMBOL_KEY].items()}
        return {**state, EACH_SYMBOL_KEY: each}
    return {name: value for name, value in state.items() if name not in _LATER_KEYS or name in saved}
