"""Trading as a task: environments to train in, and the evaluation of a policy at the end."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import counted
from ml_pipeline.reporting.report_files import PAGE_FILE
from ml_pipeline.trading.configured_market import annualized, load_configured_market
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket, prepare_market
from ml_pipeline.trading.envs.rewards import make_reward
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, EquityPath, equity_path
from ml_pipeline.trading.evaluation.certify import certify_ledger
from ml_pipeline.trading.evaluation.comparison import Comparison, MarketPart, compare_with_baselines
from ml_pipeline.trading.evaluation.implausible_results import columns_by_feature
from ml_pipeline.trading.evaluation.looks import LOOKED_AT, Look, evaluation_look, record_look
from ml_pipeline.trading.evaluation.metrics import returns_of, sharpe
from ml_pipeline.trading.evaluation.page import Observed, write_metrics, write_page
from ml_pipeline.trading.evaluation.report import results_table, write_report
from ml_pipeline.trading.evaluation.sensitivity import analyze_sensitivity
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.leaks import FeatureWarning, check_features
from ml_pipeline.trading.features.scaling import FeatureRanges, FeatureScaler
from ml_pipeline.trading.market.columns import FEATURE_PREFIX
from ml_pipeline.trading.market.data import FloatArray, MarketData, market_fingerprint
from ml_pipeline.trading.market.splits import Split, chronological_split, whole
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.trained_state import RANGES_KEY, TRAINED_BARS_KEY, TrainedBars, read_state

# Workers memory-map a market of more bytes than this; a smaller one is sent to each of them.
_WORTH_MAPPING = 4_000_000
# A score is of at most so many bars.
_MOST_SCORED = 50_000
# At most this many constant features are named.
_MOST_NAMED = 3


class TradingTask:
    """Loads the market, splits it by time, and scales its features with the statistics of the training split.

    name: of the task, for run folders. seed: of the random policies in an evaluation.
    market, scaler, splits: replace those that `config` describes.
    """

    name = "trading"

    def __init__(
        self,
        config: TradingConfig,
        seed: int = 0,
        *,
        market: MarketData | None = None,
        scaler: FeatureScaler | None = None,
        splits: Mapping[str, Split] | None = None,
    ) -> None:
        if config.per_symbol:
            raise UserError(
                "per_symbol gives each symbol an account of its own, but here one account trades all; leave it out, or "
                "use SymbolsTask."
            )
        self._given_splits = splits
        self._given_ranges: FeatureRanges | None = None  # of a training on other data
        self.trained_bars: TrainedBars | None = None  # of the policy that `from_state` evaluates
        self.config = config
        self.seed = seed
        self.market = market = annualized(market, config) if market else load_configured_market(config)
        self._notices = (*market.notices, *market.remarks)
        self.rules = config.rules(len(market.symbols))
        features = compute_features(market, config.features)
        self.features = features
        self.first_bar = features.first_bar + config.window - 1  # the first with a window of complete features
        if scaler is None:
            scaler = self._fitted_scaler()
        elif len(scaler.mean) != len(features.columns):
            raise UserError(f"The scaler is of {len(scaler.mean)} features, but there are {len(features.columns)}.")
        self.scaler = scaler
        self._prepared = prepare_market(market, features, scaler, self.rules)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.market!r})"

    def with_seed(self, seed: int) -> "TradingTask":
        """The same task on the same market, with another seed."""
        task = copy(self)
        task.seed = seed
        return task

    def with_splits(self, splits: Mapping[str, Split]) -> "TradingTask":
        """The same task on other splits, whose training split scales the features.

        The features, and what is known of their leaks, are those of all bars.
        """
        _ = self.feature_warnings
        task = copy(self)
        task._given_splits, task._given_ranges, task.trained_bars = splits, None, None
        for name in ("_splits", "ranges"):
            task.__dict__.pop(name, None)
        task.scaler = task._fitted_scaler()
        task._prepared = prepare_market(task.market, task.features, task.scaler, task.rules)
        return task

    def with_fractions(self, *, train: float, validation: float) -> "TradingTask":
        """The task that these fractions in the settings would make, on the same market and features."""
        task = self.with_splits(self.splits_by(train=train, validation=validation))
        task.config = replace(self.config, train_fraction=train, validation_fraction=validation)
        return task

    def splits_by(self, *, train: float, validation: float) -> Mapping[str, Split]:
        """The splits that these fractions in the settings would make."""
        return chronological_split(
            self.first_bar,
            self.market.n_bars,
            train_fraction=train,
            validation_fraction=validation,
            embargo_bars=self.config.embargo_bars,
            source=self.market.source,
        )

    def _fitted_scaler(self) -> FeatureScaler:
        """A scaler of the training split. Makes the notices those of this split as well."""
        rows = self._training_rows()
        scaler = FeatureScaler.fit(rows)
        about_market = (*self.market.notices, *self.market.remarks)
        about_features = _about_constants(self.features.columns, scaler(rows), ~np.isnan(rows))
        self._notices = (*about_market, *about_features, *_about_unused(self.market.columns, self.config.features))
        return scaler

    def _training_rows(self) -> FloatArray:
        """The features of the training split, and of the bars that its first window covers."""
        train = self.split("train")
        return self.features.values[train.start - self.config.window + 1 : train.stop]

    @cached_property
    def ranges(self) -> FeatureRanges:
        """The range of each feature in the training split."""
        return FeatureRanges.of(self._training_rows()) if self._given_ranges is None else self._given_ranges

    def train_env_fns(
        self, n: int, *, env_class: type[FastTradingEnv] = FastTradingEnv
    ) -> list[Callable[[], FastTradingEnv]]:
        """Picklable factories of n training environments; they hold only the bars of the training split.

        Raises UserError as `require_trainable`.
        """
        self.require_trainable()
        market = self.bars_of("train")
        make = partial(
            env_class,
            market.mapped() if market.n_bytes > _WORTH_MAPPING else market,
            self.rules,
            **self.training_settings(),
        )
        return [make] * n

    def batched_train_env(
        self, n: int, *, device: str | None = None, env_class: type[BatchedTradingEnv] = BatchedTradingEnv
    ) -> BatchedTradingEnv:
        """The same n training environments as one `BatchedTradingEnv`, which describes `device`."""
        self.require_trainable()
        return env_class(self.bars_of("train"), n, self.rules, **self.training_settings(), device=device)

    def training_settings(self) -> dict[str, Any]:
        """Arguments of a training environment, besides bars and rules."""
        config, periods_per_year = self.config, self.market.periods_per_year
        reward = make_reward(
            config.reward, config.reward_scale, config.reward_kwargs, periods_per_year=periods_per_year
        )
        return {"window": self.config.window, "episode_length": self.config.episode_length, "reward": reward}

    @cached_property
    def feature_warnings(self) -> tuple[FeatureWarning, ...]:
        """What is doubtful about the features, see `leaks`. Raises UserError about one that sees ahead."""
        accepted = self.config.accepted_features()
        return check_features(self.market, self.config.features, self.features, accepted=accepted)

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about the data and the features. Raises UserError as `feature_warnings`."""
        return (*self._notices, *(warning.sentence for warning in self.feature_warnings))

    def about_training(self, split: str) -> tuple[str, ...]:
        """Sentences if the policy that this task evaluates was trained on bars of a split, or on other bars' length."""
        part = self.split(split)
        times = self.market.times[part.start : part.stop]
        return () if self.trained_bars is None else self.trained_bars.about(self.market, times)

    def require_trainable(self) -> None:
        """Raise UserError if a feature sees ahead, or if the rules would refuse actions that exploration tries."""
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

    def score(self, act: Act) -> float:
        """How a pass through the validation split went, as `config.score` says; the best policy has the highest.

        -inf where nothing is left. A Sharpe ratio of returns that do not vary, as of a policy that never trades, counts
        as 0. A split of more than 50,000 bars is passed through from its 50,000th bar before the end on, so that
        evaluations take no longer the more bars there are.
        """
        return self.score_of(self.scored_paths(act))

    def score_of(self, paths: Sequence[EquityPath]) -> float:
        """The score of such a pass: `score` of its `scored_paths`."""
        (path,) = paths
        end = path.equity[-1]
        if end <= 0:
            return -math.inf
        if self.config.score == "sharpe":
            ratio = sharpe(returns_of(path.equity), path.periods_per_year)
            return 0.0 if math.isnan(ratio) else ratio
        return float(np.log(end / self.rules.initial_cash))

    def scored_paths(self, act: Act) -> tuple[EquityPath, ...]:
        """The equity, bar by bar, of the pass that `score` makes: of one account."""
        return (equity_path(self._scored_env(), act),)

    def _scored_env(self) -> FastTradingEnv:
        split = self.split("validation")
        bars = self._bars_between(max(split.start, split.stop - _MOST_SCORED), split.stop)
        return FastTradingEnv(bars, self.rules, window=self.config.window)

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate on the test split, write the report into `folder`, and return a table to print."""
        return str(self.evaluate(act, "test", folder, page=True)["table"])

    def evaluate(
        self,
        act: Act,
        split: str = "test",
        folder: str | Path | None = None,
        *,
        page: bool = False,
        certify: bool = False,
        look: Look | None = None,
    ) -> dict[str, Any]:
        """Run `act`, observation -> action, through a split, and compare it with its baselines.

        Returns {"agent", "buy_and_hold", "equal_weight", "random": each a dict of `summary.summarize`, "table": a str
        to print}.
        folder: where to write ledger.csv, trades.csv, evaluation.json and equity.png; None writes nothing.
        page: also write report.html and metrics.json, which add its orders run again at other fees and later.
        certify: replay the ledger with another engine; raises CertificationFailed if its equity differs.
        look: how this is written down if it opens the test split; None: as an evaluation into `folder`.
        """
        comparison = self.compare(act, split, look=look or evaluation_look(folder))
        return self.report_on(comparison, split, folder, page=page, certify=certify)

    def report_on(
        self,
        comparison: Comparison,
        split: str,
        folder: str | Path | None = None,
        *,
        page: bool = False,
        certify: bool = False,
    ) -> dict[str, Any]:
        """What `evaluate` does with the comparison that it makes."""
        evaluation, env, actions = comparison
        lines = [results_table(evaluation)]
        if folder is not None:
            write_report(Path(folder), evaluation)
        if certify:
            lines.append(certify_ledger(evaluation.agent, self.rules, self.market.periods_per_year))
        if page and folder is not None:
            sensitivity = analyze_sensitivity(env, evaluation.agent, actions)
            lines[1:1] = sensitivity.sentences()
            write_page(
                Path(folder) / PAGE_FILE,
                evaluation,
                sensitivity,
                observed=self._observed(split),
                notes=lines[-1:] if certify else (),
            )
            write_metrics(Path(folder) / "metrics.json", evaluation, sensitivity)
        return {**evaluation.figures, "table": "\n".join(lines)}

    @cached_property
    def fingerprint(self) -> str:
        """Of its data: see `market_fingerprint`."""
        return market_fingerprint(self.market)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return (self.fingerprint,)

    def compare(self, act: Act, split: str = "test", *, look: Look | None = None) -> Comparison:
        """Run `act` and its baselines through a split. A look at the test part of the data is written down before."""
        if split in LOOKED_AT:
            record_look(look or evaluation_look(None), self.fingerprints)
        # If they were looked for: `sanity` trains on leaks on purpose.
        found = [warning.sentence for warning in self.__dict__.get("feature_warnings", ())]
        part = MarketPart(
            split=split,
            calendar=self.market.calendar,
            remarks=(*self.market.remarks, *found),
            feature_columns=columns_by_feature(self.features, self.market.symbols),
        )
        return compare_with_baselines(self.evaluation_env(split), act, part, seed=self.seed)

    def _observed(self, name: str) -> Observed:
        split = self.split(name)
        return Observed(self.features.columns, self.features.values[split.start : split.stop])

    def split(self, name: str) -> Split:
        """The bars of the named split. Raises UserError for an unknown name, and if there are too few bars."""
        if name == "all":
            return whole(self.first_bar, self.market.n_bars, source=self.market.source)
        if name not in self._splits:
            raise UserError(f'There is no split "{name}". {nearest(name, [*self._splits, "all"])}')
        return self._splits[name]

    @cached_property
    def _splits(self) -> Mapping[str, Split]:
        if self._given_splits is not None:
            return self._given_splits
        return self.splits_by(train=self.config.train_fraction, validation=self.config.validation_fraction)

    def bars_of(self, name: str) -> PreparedMarket:
        """The bars of the named split, preceded by those that its first window covers."""
        split = self.split(name)
        return self._bars_between(split.start, split.stop)

    def _bars_between(self, start: int, stop: int) -> PreparedMarket:
        return self._prepared.bars(start - self.config.window + 1, stop)

    def state(self) -> dict[str, Any]:
        """What a trained policy depends on, as primitives and lists, for a checkpoint."""
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
    def from_state(cls, state: Mapping[str, Any], config: TradingConfig, seed: int = 0) -> "TradingTask":
        """The task for evaluating a trained policy: observations and actions as trained, the rest from `config`.

        The data may differ from the training data, but need the same number of symbols. Raises UserError if they
        have another, or if `state` is not one of `state()`.
        """
        trained = read_state(state, config)
        market = load_configured_market(trained.config)
        chosen = trained.symbols_on(market.symbols)
        if chosen != market.symbols:
            market = market.select(chosen)
        task = cls(trained.config, seed, market=market, scaler=trained.scaler)
        task._given_ranges = trained.ranges
        task.trained_bars = trained.bars
        return task


def _about_constants(names: tuple[str, ...], scaled: NDArray[np.float32], known: NDArray[np.bool_]) -> tuple[str, ...]:
    """A sentence about the features that are constant in all rows, (T, D), if there are any."""
    still = [names[i] for i in np.flatnonzero(known.any(axis=0) & ~scaled.any(axis=0))]
    if not still:
        return ()
    more = f" and {counted(len(still) - _MOST_NAMED, 'other')}" if len(still) > _MOST_NAMED else ""
    shown = ", ".join(still[:_MOST_NAMED])
    return (f"constant in the training split, and observed as 0: {shown}{more}; leave such features out",)


def _about_unused(columns: Iterable[str], features: Sequence[str]) -> tuple[str, ...]:
    """A sentence about the columns of the data that no feature observes, if there are any."""
    observed = {name.split("@")[0] for name in features}
    unused = [] if f"{FEATURE_PREFIX}*" in observed else [name for name in columns if name not in observed]
    if not unused:
        return ()
    more = f" and {counted(len(unused) - _MOST_NAMED, 'other')}" if len(unused) > _MOST_NAMED else ""
    return (
        f"columns of the data that are not observed: {', '.join(unused[:_MOST_NAMED])}{more}; --features names those "
        f"to observe, {FEATURE_PREFIX}* all of them",
    )
