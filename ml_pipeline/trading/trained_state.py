"""What a checkpoint holds of the market that its policy was trained on, and which settings follow from it elsewhere."""

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
"""Of the state of a task; checkpoints of older versions lack it."""
TRAINED_BARS_KEY = "trained_bars"
"""Of the state of a task; checkpoints of older versions lack it."""
EACH_SYMBOL_KEY = "each_symbol"
"""Of the state of a task in which each symbol has an account of its own."""


_LATER_KEYS = frozenset({RANGES_KEY, TRAINED_BARS_KEY})


class TrainedBars(NamedTuple):
    """The bars of the training split: when the first and the last begin or close, as the data say, their usual length
    in ns, and the symbols."""

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
        """Those of a `TradedMarket.state`; None of an older version's."""
        try:
            first, last, length, symbols = state[TRAINED_BARS_KEY]
            return cls(str(np.datetime64(first)), str(np.datetime64(last)), int(length), tuple(symbols))
        except (KeyError, TypeError, ValueError):
            return None

    def state(self) -> list[Any]:
        """As primitives and lists, for a checkpoint."""
        return [self.first, self.last, self.length_ns, [*self.symbols]]

    def about(self, market: MarketData, times: Times) -> tuple[str, ...]:
        """Sentences if the bars of a market at these times were trained on, or have another length than those."""
        said = []
        if market.timing.length != self.length_ns:
            trained, given = (length_in_words(length) for length in (self.length_ns, market.timing.length))
            said.append(
                f"the policy was trained on bars of {trained}, but these have {given}: what it learned of N bars is "
                "another span of time here"
            )
        inside = (times >= np.datetime64(self.first)) & (times <= np.datetime64(self.last))
        if {*market.symbols} & {*self.symbols} and inside.any():
            said.append(
                f"{np.count_nonzero(inside):,} of the {counted(len(times), 'bar')} were trained on (from "
                f"{self.first[:16]} to {self.last[:16]}), so what the policy earns there says nothing of bars that it "
                "has not seen"
            )
        return tuple(said)


class TrainedState(NamedTuple):
    """config: the settings with what the policy depends on as it was trained: observations and actions.

    symbols, scaler: those of the training. ranges, bars: None where the checkpoint is of an older version.
    """

    config: TradingConfig
    symbols: tuple[str, ...]
    scaler: FeatureScaler
    ranges: FeatureRanges | None
    bars: TrainedBars | None = None

    def symbols_on(self, available: Sequence[str]) -> tuple[str, ...]:
        """The symbols of some data that the policy trades: those it was trained on, if all are there.

        available: those that the settings name, or all of the data. Raises UserError where their number differs.
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
    """What `TradedMarket.state` wrote, and the rest of the settings from `config`.

    Raises UserError if it is no such state.
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
    """The settings of a training with other market conditions: by name, those that differ.

    on_other_data: whether symbols, the meaning of columns and times, and the bars per year, which are of the data that
    it was trained on, are left out if `changes` does not name them; None: if `changes` names data. A fee that changes
    is that of sales too.
    """
    own: dict[str, Any] = {"symbols": (), "periods_per_year": None}  # of the data that it was trained on
    own |= {"bar_time": None, "columns": {}, "date_order": None}
    of_data: dict[str, Any] = own if ("data" in changes if on_other_data is None else on_other_data) else {}
    of_fees: dict[str, Any] = {"sell_fee_bps": None} if "fee_bps" in changes else {}
    return replace(trained, **{**of_data, **of_fees, **changes})


def as_saved(state: Mapping[str, Any], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` without what a checkpoint of an older version lacks, to compare the two."""
    if EACH_SYMBOL_KEY in state:
        before = saved.get(EACH_SYMBOL_KEY, {})
        each = {name: as_saved(own, before.get(name, own)) for name, own in state[EACH_SYMBOL_KEY].items()}
        return {**state, EACH_SYMBOL_KEY: each}
    return {name: value for name, value in state.items() if name not in _LATER_KEYS or name in saved}
