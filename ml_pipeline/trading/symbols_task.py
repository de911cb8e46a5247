"""Trading with one account per symbol as a task: environment i trades symbol i mod k alone, on its own bars.

One policy learns from all of them. `TradingTask` is one account that trades all symbols.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted, text_table, written
from ml_pipeline.reporting.report_files import EVALUATION_FILE, PAGE_FILE
from ml_pipeline.trading.configured_market import fingerprint, listed, load_single_markets
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, EquityPath
from ml_pipeline.trading.evaluation.combined_accounts import evaluation_together
from ml_pipeline.trading.evaluation.looks import Look, evaluation_look
from ml_pipeline.trading.evaluation.page import write_page
from ml_pipeline.trading.evaluation.report import results_table, without_nan, write_report
from ml_pipeline.trading.evaluation.results import COLUMNS, Evaluation
from ml_pipeline.trading.features.leaks import FeatureWarning
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.timeframes import length_in_words
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.trained_state import EACH_SYMBOL_KEY, TrainedBars

SYMBOLS_FOLDER = "symbols"
"""Of a run folder: the report of each symbol, in a folder of its name."""


class SymbolsTask:
    """A `TradingTask` for each symbol, and what they make together.

    The score is the mean of theirs. The report is of all accounts together, each begun with the configured cash, and
    one of each symbol in symbols/SYMBOL.
    markets: one market for each symbol, in place of those that `config` describes. scalers: of their features, by
    symbol; None: fitted to each one's training split.
    """

    name = "trading"

    def __init__(
        self,
        config: TradingConfig,
        seed: int = 0,
        *,
        markets: Mapping[str, MarketData] | None = None,
        scalers: Mapping[str, FeatureScaler] | None = None,
    ) -> None:
        """Raises UserError where a market cannot be used, or differs from the others in its features or bars."""
        markets = load_single_markets(config) if markets is None else markets
        if not markets:
            raise UserError("symbols must be at least one symbol, such as EURUSD, but got none.")
        self.config = config
        self.seed = seed
        alone, scalers = replace(config, per_symbol=False, symbols=()), scalers or {}
        self.tasks = {
            symbol: TradingTask(alone, seed, market=market, scaler=scalers.get(symbol))
            for symbol, market in markets.items()
        }
        _require_alike(self.tasks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.tasks)})"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the data of each symbol: see `market_fingerprint`."""
        return tuple(task.fingerprint for task in self.tasks.values())

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.tasks)

    def with_seed(self, seed: int) -> "SymbolsTask":
        """The same task on the same markets, with another seed."""
        same = copy(self)
        same.seed = seed
        same.tasks = {symbol: task.with_seed(seed) for symbol, task in self.tasks.items()}
        return same

    def with_fractions(self, *, train: float, validation: float) -> "SymbolsTask":
        """The task that these fractions in the settings would make, on the same markets and features."""
        same = copy(self)
        same.config = replace(self.config, train_fraction=train, validation_fraction=validation)
        same.tasks = {
            symbol: task.with_fractions(train=train, validation=validation) for symbol, task in self.tasks.items()
        }
        return same

    @property
    def feature_warnings(self) -> tuple[FeatureWarning, ...]:
        """The warnings about the features of each symbol. Raises UserError about a feature that sees ahead."""
        return tuple(
            replace(warning, sentence=_of_symbol(symbol, warning.sentence))
            for symbol, task in self.tasks.items()
            for warning in task.feature_warnings
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about the data of each symbol. Raises UserError about a feature that sees ahead."""
        return tuple(_of_symbol(symbol, notice) for symbol, task in self.tasks.items() for notice in task.notices)

    def about_training(self, split: str) -> tuple[str, ...]:
        """As of `TradingTask`, of each symbol."""
        return tuple(
            _of_symbol(symbol, said) for symbol, task in self.tasks.items() for said in task.about_training(split)
        )

    def train_env_fns(
        self, n: int, *, env_class: type[FastTradingEnv] = FastTradingEnv
    ) -> list[Callable[[], FastTradingEnv]]:
        """Factories of n environments dealt round the symbols. Raises UserError where a symbol would have none."""
        if n < len(self.tasks):
            raise UserError(
                f"n_envs is {n}, but each of {counted(len(self.tasks), 'symbol')} ({listed(self.symbols)}) needs an "
                f"environment of its own; set n_envs to {len(self.tasks)} or more, or name fewer symbols."
            )
        makers = [task.train_env_fns(1, env_class=env_class)[0] for task in self.tasks.values()]
        return [makers[i % len(makers)] for i in range(n)]

    def batched_train_env(
        self, n: int, *, device: str | None = None, env_class: type[BatchedTradingEnv] = BatchedTradingEnv
    ) -> BatchedTradingEnv:
        """n environments in one; each of their episodes draws its symbol."""
        first = next(iter(self.tasks.values()))
        for task in self.tasks.values():
            task.require_trainable()
        markets = [task.bars_of("train") for task in self.tasks.values()]
        return env_class(markets, n, first.rules, **first.training_settings(), device=device)

    def evaluation_env(
        self, split: str = "test", *, render_mode: Literal["rgb_array"] | None = None
    ) -> StatefulTradingEnv:
        """The evaluation environment of the first symbol; those of the others have the same spaces."""
        return next(iter(self.tasks.values())).evaluation_env(split, render_mode=render_mode)

    def score(self, act: Act) -> float:
        """The mean of the symbols' scores on the validation split."""
        return float(np.mean([task.score(act) for task in self.tasks.values()]))

    def score_of(self, paths: Sequence[EquityPath]) -> float:
        """The score of such passes: `score` of its `scored_paths`."""
        return float(np.mean([task.score_of([path]) for task, path in zip(self.tasks.values(), paths, strict=True)]))

    def scored_paths(self, act: Act) -> tuple[EquityPath, ...]:
        """The equity, bar by bar, of the passes that `score` makes: of the account of each symbol."""
        return tuple(path for task in self.tasks.values() for path in task.scored_paths(act))

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate on the test split, write the reports into `folder`, and return the tables to print."""
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
        """Run `act` through a split of each symbol, as `TradingTask.evaluate`; it is one look.

        Returns the figures of all accounts together under its names, those of each symbol in "symbols", and "table".
        """
        each: dict[str, dict[str, Any]] = {}
        evaluations: list[Evaluation] = []
        look = look or evaluation_look(folder)
        for symbol, task in self.tasks.items():
            own = None if folder is None else Path(folder) / SYMBOLS_FOLDER / _as_folder(symbol)
            comparison = task.compare(act, split, look=look)
            each[symbol] = task.report_on(comparison, split, own, page=page, certify=certify)
            evaluations.append(comparison.evaluation)
        together = evaluation_together(evaluations)
        lines = _table_of_each(each)
        if folder is not None:
            self._write(Path(folder), together, each, lines, page=page)
        of_symbols = {symbol: {name: figures[name] for name in COLUMNS} for symbol, figures in each.items()}
        return {
            **together.figures,
            "symbols": of_symbols,
            "table": f"{results_table(together)}\n\n{text_table(lines)}",
        }

    def _write(
        self,
        folder: Path,
        together: Evaluation,
        each: Mapping[str, Mapping[str, Any]],
        lines: Sequence[Sequence[str]],
        *,
        page: bool,
    ) -> None:
        write_report(folder, together)
        path = folder / EVALUATION_FILE
        figures = json.loads(path.read_text(encoding="utf-8"))
        figures["each_symbol"] = {
            symbol: {name: without_nan(own[name]) for name in COLUMNS} for symbol, own in each.items()
        }
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        if page:
            titles = lines[0][1:]
            notes = [
                f"{symbol}: {', '.join(f'{title} {cell}' for title, cell in zip(titles, cells, strict=True))}."
                for symbol, *cells in lines[1:]
            ]
            where = f"The report of each symbol is in {SYMBOLS_FOLDER}/SYMBOL/{PAGE_FILE}."
            write_page(folder / PAGE_FILE, together, notes=[*notes, where])

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {symbol: fingerprint(task.market) for symbol, task in self.tasks.items()}

    def state(self) -> dict[str, Any]:
        """What a trained policy depends on: of each symbol, the state of its task and a fingerprint of its data."""
        return {
            EACH_SYMBOL_KEY: {
                symbol: {**task.state(), "fingerprint": self._fingerprints[symbol]}
                for symbol, task in self.tasks.items()
            }
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], config: TradingConfig, seed: int = 0) -> "SymbolsTask":
        """The task for evaluating a trained policy: observations and actions as trained, the rest from `config`.

        A symbol that it was not trained on is scaled by its own training split.
        Raises UserError if `state` is not one of `state()`, or the data cannot be used.
        """
        try:
            of_symbols = dict(state[EACH_SYMBOL_KEY])
            one = next(iter(of_symbols.values()))
            as_trained = {name: one[name] for name in ("window", "action_mode", "allow_short")}
            config = replace(config, features=tuple(one["features"]), per_symbol=True, **as_trained)
            scalers = {symbol: FeatureScaler.from_state(own["scaler"]) for symbol, own in of_symbols.items()}
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise UserError(f"This is not the state of a trading task of several symbols: {error!r}.") from error
        made = cls(config, seed, scalers=scalers)
        for symbol, task in made.tasks.items():
            task.trained_bars = TrainedBars.from_state(of_symbols[symbol]) if symbol in of_symbols else None
        return made


def trading_task(
    config: TradingConfig, seed: int = 0, *, scaled_as: Mapping[str, Any] | None = None
) -> TradingTask | SymbolsTask:
    """The task of these settings. Raises UserError where the market cannot be used.

    scaled_as: the state of another task, by whose scaling features are scaled in place of that of the training split; a
    symbol that it does not know has its own. Raises UserError where that task observes otherwise.
    """
    if scaled_as is None:
        return SymbolsTask(config, seed) if config.per_symbol else TradingTask(config, seed)
    try:
        states = dict(scaled_as[EACH_SYMBOL_KEY]) if config.per_symbol else {"": scaled_as}
        scalers = {symbol: FeatureScaler.from_state(own["scaler"]) for symbol, own in states.items()}
        one = next(iter(states.values()))
        observed = {"features": tuple(one["features"]), "window": one["window"]}
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise UserError(
            f"The policy was not trained with per_symbol {written(config.per_symbol)}; set it as it was there."
        ) from error
    for name, theirs in observed.items():
        if getattr(config, name) != theirs:
            raise UserError(
                f"The policy was trained with {name} {written(theirs)}, but the settings have "
                f"{written(getattr(config, name))}; give what it was trained with."
            )
    if config.per_symbol:
        return SymbolsTask(config, seed, scalers=scalers)
    return TradingTask(config, seed, scaler=scalers[""])


def trading_task_from_state(
    state: Mapping[str, Any], config: TradingConfig, seed: int = 0
) -> TradingTask | SymbolsTask:
    """The task of a checkpoint. Raises UserError where the state or the data cannot be used."""
    if EACH_SYMBOL_KEY in state:
        return SymbolsTask.from_state(state, config, seed)
    return TradingTask.from_state(state, config, seed)


def _of_symbol(symbol: str, sentence: str) -> str:
    return sentence if sentence.startswith(symbol) else f"{symbol}: {sentence}"


def _require_alike(tasks: Mapping[str, TradingTask]) -> None:
    """Raise UserError, saying which, where two symbols have other features or bars of another length."""
    (first, usual), *others = tasks.items()
    columns = _columns(usual)
    for symbol, task in others:
        if _columns(task) != columns:
            odd = sorted({*_columns(task)} ^ {*columns})
            has, lacks = (symbol, first) if odd[0] in _columns(task) else (first, symbol)
            raise UserError(
                f"All symbols need the same features, but {has} has {odd[0]} and {lacks} does not; name features that "
                "all files have."
            )
        lengths = [each.market.timing.length for each in (usual, task)]
        if lengths[0] != lengths[1]:
            raise UserError(
                f"All symbols need bars of one length, but those of {first} are {length_in_words(lengths[0])} apart "
                f"and those of {symbol} {length_in_words(lengths[1])}; use files of one time frame, or set timeframe."
            )


def _columns(task: TradingTask) -> list[str]:
    """The names of the features, without the symbol."""
    (symbol,) = task.market.symbols
    return [name.removeprefix(f"{symbol}:") for name in task.features.columns]


def _table_of_each(each: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    header = ["", "agent", "buy and hold", "random", "Sharpe ratio", "largest drawdown", "trades"]
    rows = [
        [
            symbol,
            *(_percent(figures[name]["total_return"], "+") for name in ("agent", "buy_and_hold", "random")),
            "-" if np.isnan(sharpe := figures["agent"]["sharpe"]) else f"{sharpe:.2f}",
            _percent(figures["agent"]["max_drawdown"], ""),
            f"{figures['agent']['n_trades']:,.0f}",
        ]
        for symbol, figures in each.items()
    ]
    return [header, *rows]


def _percent(fraction: float, sign: str) -> str:
    return "-" if np.isnan(fraction) else f"{100 * fraction:{sign},.1f} %"


def _as_folder(symbol: str) -> str:
    """A symbol as the name of a folder: BTC/USD is BTC-USD."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in symbol).lstrip(".") or "-"
