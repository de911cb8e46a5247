"""The market of one account: its features, splits and environments."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.configured_market import annualized, load_configured_market, load_markets
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket, prepare_market
from ml_pipeline.trading.envs.rewards import make_reward
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, EquityPath, equity_path
from ml_pipeline.trading.evaluation.comparison import Comparison, MarketPart, compare_with_baselines
from ml_pipeline.trading.evaluation.implausible_results import columns_by_feature
from ml_pipeline.trading.evaluation.metrics import returns_of, sharpe
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.leaks import FeatureWarning, check_features
from ml_pipeline.trading.features.scaling import FeatureRanges, FeatureScaler
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData, market_fingerprint
from ml_pipeline.trading.market.splits import Split, chronological_split, whole
from ml_pipeline.trading.market.timeframes import length_in_words
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.trained_state import RANGES_KEY, TRAINED_BARS_KEY, TrainedBars, TrainedState

# Workers memory-map a market above this many bytes; a smaller one is sent to each worker.
_WORTH_MAPPING = 4_000_000
# Most bars of a score.
_MOST_SCORED = 50_000
# Most constant features that a message names.
_MOST_NAMED = 3


class TradedMarket:
    """Splits a market by time, and scales its features with the statistics of the training split.

    market, scaler, splits: replace those of `config`.
    """

    trained_bars: TrainedBars | None = None
    """The training bars of the policy that is evaluated here, if it was trained elsewhere."""

    def __init__(
        self,
        config: TradingConfig,
        *,
        market: MarketData | None = None,
        scaler: FeatureScaler | None = None,
        splits: Mapping[str, Split] | None = None,
    ) -> None:
        if config.per_symbol:
            raise UserError(
                "per_symbol gives each symbol a separate account, but here one account trades all symbols; leave it "
                "out."
            )
        self.config = config
        self.market = market = annualized(market, config) if market else load_configured_market(config)
        self._notices = (*market.notices, *market.remarks)
        self.rules = config.rules(len(market.symbols))
        features = compute_features(market, config.features)
        self.features = features
        self.first_bar = features.first_bar + config.window - 1  # the first with a window of complete features
        if splits is not None:
            self._splits = splits
        if scaler is None:
            scaler = self._fitted_scaler()
        elif len(scaler.mean) != len(features.columns):
            raise UserError(f"The scaler has {len(scaler.mean)} features, but there are {len(features.columns)}.")
        self.scaler = scaler
        self._prepared = prepare_market(market, features, scaler, self.rules)

    def with_splits(self, splits: Mapping[str, Split]) -> "TradedMarket":
        """The same market with other splits, whose training split scales the features.

        Features and look-ahead checks still cover all bars.
        """
        _ = self.feature_warnings
        other = copy(self)
        other._splits, other.trained_bars = splits, None
        other.__dict__.pop("ranges", None)
        other.scaler = other._fitted_scaler()
        other._prepared = prepare_market(other.market, other.features, other.scaler, other.rules)
        return other

    def with_fractions(self, *, train: float, validation: float) -> "TradedMarket":
        """The same market with the splits of these fractions."""
        other = self.with_splits(self.splits_by(train=train, validation=validation))
        other.config = replace(self.config, train_fraction=train, validation_fraction=validation)
        return other

    def splits_by(self, *, train: float, validation: float) -> Mapping[str, Split]:
        """The splits of these fractions."""
        return chronological_split(
            self.first_bar,
            self.market.n_bars,
            train_fraction=train,
            validation_fraction=validation,
            embargo_bars=self.config.embargo_bars,
            source=self.market.source,
        )

    def _fitted_scaler(self) -> FeatureScaler:
        """Fit a scaler to the training split, and set the notices about this split."""
        rows = self._training_rows()
        scaler = FeatureScaler.fit(rows)
        about_market = (*self.market.notices, *self.market.remarks)
        about_features = _about_constants(self.features.columns, scaler(rows), ~np.isnan(rows))
        self._notices = (*about_market, *about_features, *_about_unused(self.market.columns, self.config.features))
        return scaler

    def _training_rows(self) -> FloatArray:
        """The features of the training split and of its first window."""
        train = self.split("train")
        return self.features.values[train.start - self.config.window + 1 : train.stop]

    @cached_property
    def ranges(self) -> FeatureRanges:
        """The range of each feature in the training split."""
        return FeatureRanges.of(self._training_rows())

    def train_env_fn(self, env_class: type[FastTradingEnv] = FastTradingEnv) -> Callable[[], FastTradingEnv]:
        """A picklable factory of training environments, which holds only the bars of the training split.

        Raises UserError as `require_trainable`.
        """
        self.require_trainable()
        market = self.bars_of("train")
        return partial(
            env_class,
            market.mapped() if market.n_bytes > _WORTH_MAPPING else market,
            self.rules,
            **self.training_settings(),
        )

    def training_settings(self) -> dict[str, Any]:
        """Arguments of a training environment except bars and rules."""
        config, periods_per_year = self.config, self.market.periods_per_year
        reward = make_reward(
            config.reward, config.reward_scale, config.reward_kwargs, periods_per_year=periods_per_year
        )
        return {"window": self.config.window, "episode_length": self.config.episode_length, "reward": reward}

    @cached_property
    def feature_warnings(self) -> tuple[FeatureWarning, ...]:
        """Doubts about the features, see `leaks`. Raises UserError about a feature that uses later data."""
        accepted = self.config.accepted_features()
        return check_features(self.market, self.config.features, self.features, accepted=accepted)

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about the data and the features. Raises UserError as `feature_warnings`."""
        return (*self._notices, *(warning.sentence for warning in self.feature_warnings))

    def about_training(self, split: str) -> tuple[str, ...]:
        """Sentences if the evaluated policy was trained on bars of a split, or on bars of a different length."""
        part = self.split(split)
        times = self.market.times[part.start : part.stop]
        return () if self.trained_bars is None else self.trained_bars.about(self.market, times)

    def require_trainable(self) -> None:
        """Raise UserError if a feature uses later data, or if the rules would refuse actions of exploration."""
        _ = self.feature_warnings
        if self.rules.may_refuse(len(self.market.symbols)):
            raise UserError(
                'on_limit "refuse" would end training at the first action beyond max_position '
                f'({self.rules.max_position:g}) or max_gross ({self.rules.max_gross:g}); train with on_limit "clip".'
            )

    def evaluation_env(
        self, split: str = "test", *, render_mode: Literal["rgb_array"] | None = None
    ) -> StatefulTradingEnv:
        """An environment that passes once through the "train", "validation" or "test" split, or through "all" bars."""
        return StatefulTradingEnv(self.bars_of(split), self.rules, window=self.config.window, render_mode=render_mode)

    def score(self, path: EquityPath) -> float:
        """The score of a pass from `scored_path`, by `config.score`.

        It is -inf if no equity is left. The Sharpe ratio of constant returns, as of a policy that never trades, counts
        as 0.
        """
        end = path.equity[-1]
        if end <= 0:
            return -math.inf
        if self.config.score == "sharpe":
            ratio = sharpe(returns_of(path.equity), path.periods_per_year)
            return 0.0 if math.isnan(ratio) else ratio
        return float(np.log(end / self.rules.initial_cash))

    def scored_path(self, act: Act) -> EquityPath:
        """The equity, bar by bar, of a pass through the validation split, or through its last 50,000 bars.

        The limit bounds the time of an evaluation.
        """
        split = self.split("validation")
        bars = self._bars_between(max(split.start, split.stop - _MOST_SCORED), split.stop)
        return equity_path(FastTradingEnv(bars, self.rules, window=self.config.window), act)

    def compare(self, act: Act, split: str, *, seed: int) -> Comparison:
        """Run `act` and its baselines through a split. seed: of the random policies."""
        # Only if the check ran: `sanity` trains on leaks on purpose.
        found = [warning.sentence for warning in self.__dict__.get("feature_warnings", ())]
        part = MarketPart(
            split=split,
            calendar=self.market.calendar,
            remarks=(*self.market.remarks, *found),
            feature_columns=columns_by_feature(self.features, self.market.symbols),
        )
        return compare_with_baselines(self.evaluation_env(split), act, part, seed=seed)

    @cached_property
    def fingerprint(self) -> str:
        """The `market_fingerprint` of its bars."""
        return market_fingerprint(self.market)

    @cached_property
    def bars_digest(self) -> str:
        """A digest of all bars."""
        market, digest = self.market, hashlib.blake2b(digest_size=16)
        for values in (market.times, market.open, market.high, market.low, market.close, market.volume):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def split(self, name: str) -> Split:
        """The bars of the named split. Raises UserError for an unknown name, and if there are too few bars."""
        if name == "all":
            return whole(self.first_bar, self.market.n_bars, source=self.market.source)
        if name not in self._splits:
            raise UserError(f'There is no split "{name}". {nearest(name, [*self._splits, "all"])}')
        return self._splits[name]

    @cached_property
    def _splits(self) -> Mapping[str, Split]:
        return self.splits_by(train=self.config.train_fraction, validation=self.config.validation_fraction)

    def bars_of(self, name: str) -> PreparedMarket:
        """The bars of the named split, preceded by those of its first window."""
        split = self.split(name)
        return self._bars_between(split.start, split.stop)

    def _bars_between(self, start: int, stop: int) -> PreparedMarket:
        return self._prepared.bars(start - self.config.window + 1, stop)

    def state(self) -> dict[str, Any]:
        """The state that a trained policy depends on, as primitives and lists, for a checkpoint."""
        return {
            "symbols": list(self.market.symbols),
            "features": list(self.config.features),
            "window": self.config.window,
            "action_mode": self.rules.action_mode,
            "allow_short": self.rules.allow_short,
            "scaler": self.scaler.state(),
            RANGES_KEY: self.ranges.state(),
            TRAINED_BARS_KEY: (self.trained_bars or TrainedBars.of(self.market, self.split("train"))).state(),
        }

    @classmethod
    def as_trained(cls, trained: TrainedState) -> "TradedMarket":
        """The market for evaluating a trained policy. Raises UserError if its number of symbols differs."""
        market = load_configured_market(trained.config)
        chosen = trained.symbols_on(market.symbols)
        if chosen != market.symbols:
            market = market.select(chosen)
        made = cls(trained.config, market=market, scaler=trained.scaler)
        if trained.ranges is not None:
            made.ranges = trained.ranges
        made.trained_bars = trained.bars
        return made


def traded_markets(
    config: TradingConfig,
    markets: Mapping[str, MarketData] | None = None,
    *,
    scalers: Mapping[str, FeatureScaler] | None = None,
) -> dict[str, TradedMarket]:
    """The market of each account: by symbol with `per_symbol`; otherwise of one account, under "".

    markets: replace those of `config`. scalers: by the same names; a market without one gets the scaler of its training
    split. Raises UserError if a market is invalid, or differs from the others in features or bar length.
    """
    markets = load_markets(config) if markets is None else markets
    if not markets:
        raise UserError("symbols must be at least one symbol, such as EURUSD, but got none.")
    alone = replace(config, per_symbol=False, symbols=()) if config.per_symbol else config
    scalers = scalers or {}
    made = {name: TradedMarket(alone, market=market, scaler=scalers.get(name)) for name, market in markets.items()}
    if config.per_symbol:
        _require_alike(made)
    return made


def _require_alike(markets: Mapping[str, TradedMarket]) -> None:
    """Raise UserError, with both symbols, if two have different features or bar lengths."""
    (first, usual), *others = markets.items()
    columns = _columns(usual)
    for symbol, other in others:
        if _columns(other) != columns:
            odd = sorted({*_columns(other)} ^ {*columns})
            has, lacks = (symbol, first) if odd[0] in _columns(other) else (first, symbol)
            raise UserError(
                f"All symbols need the same features, but {has} has {odd[0]} and {lacks} does not; use features that "
                "all files have."
            )
        lengths = [each.market.timing.length for each in (usual, other)]
        if lengths[0] != lengths[1]:
            raise UserError(
                f"All symbols need bars of one length, but those of {first} are {length_in_words(lengths[0])} apart "
                f"and those of {symbol} {length_in_words(lengths[1])}; use files of one timeframe, or set timeframe."
            )


def _columns(traded: TradedMarket) -> list[str]:
    """The names of the features, without the symbol."""
    (symbol,) = traded.market.symbols
    return [name.removeprefix(f"{symbol}:") for name in traded.features.columns]


def _about_constants(names: tuple[str, ...], scaled: NDArray[np.float32], known: NDArray[np.bool_]) -> tuple[str, ...]:
    """A sentence about features that are constant in all rows, (T, D), if there are any."""
    still = [names[i] for i in np.flatnonzero(known.any(axis=0) & ~scaled.any(axis=0))]
    if not still:
        return ()
    more = f" and {counted(len(still) - _MOST_NAMED, 'other')}" if len(still) > _MOST_NAMED else ""
    shown = ", ".join(still[:_MOST_NAMED])
    return (f"constant in the training split and therefore observed as 0: {shown}{more}; leave such features out",)


def _about_unused(columns: Iterable[str], features: Sequence[str]) -> tuple[str, ...]:
    """A sentence about columns of the data that are not observed, if there are any."""
    observed = {name.split("@")[0] for name in features}
    unused = [] if f"{FEATURE_PREFIX}*" in observed else [name for name in columns if name not in observed]
    if not unused:
        return ()
    more = f" and {counted(len(unused) - _MOST_NAMED, 'other')}" if len(unused) > _MOST_NAMED else ""
    return (
        f"columns of the data that are not observed: {', '.join(unused[:_MOST_NAMED])}{more}; add them to --features, "
        f"or {FEATURE_PREFIX}* for all of them",
    )
