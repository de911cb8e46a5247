"""The trading task: environments for training, and the evaluation of a policy."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import without_nan
from ml_pipeline.config.wording import counted, text_table, written
from ml_pipeline.reporting.report_files import EVALUATION_FILE, PAGE_FILE
from ml_pipeline.trading.configured_market import listed
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, EquityPath
from ml_pipeline.trading.evaluation.certify import certify_ledger
from ml_pipeline.trading.evaluation.combined_accounts import evaluation_together
from ml_pipeline.trading.evaluation.comparison import Comparison
from ml_pipeline.trading.evaluation.looks import LOOKED_AT, Look, evaluation_look, record_look
from ml_pipeline.trading.evaluation.page import Observed, write_metrics, write_page
from ml_pipeline.trading.evaluation.report import results_summary, results_table, write_report
from ml_pipeline.trading.evaluation.results import COLUMNS, Evaluation
from ml_pipeline.trading.evaluation.sensitivity import analyze_sensitivity
from ml_pipeline.trading.features.leaks import FeatureWarning
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.traded_market import TradedMarket, traded_markets
from ml_pipeline.trading.trained_state import EACH_SYMBOL_KEY, read_state

SYMBOLS_FOLDER = "symbols"
"""Folder in a run folder with a report per symbol."""


class TradingTask:
    """One account that trades all symbols; or, with `per_symbol`, one account per symbol and one policy for all.

    Environment i trades in account i mod k. The score is the mean of the accounts' scores. The report covers all
    accounts together, each with the configured initial cash; with `per_symbol` there is also a report per symbol.

    name: of the task, for run folders. seed: of the random policies in an evaluation. market: replaces the market of
    `config`, for one account. accounts: the market of each account, from `traded_markets`.
    """

    name = "trading"

    def __init__(
        self,
        config: TradingConfig,
        seed: int = 0,
        *,
        market: MarketData | None = None,
        accounts: Mapping[str, TradedMarket] | None = None,
    ) -> None:
        """Raises UserError if a market is invalid, or differs from the others in features or bar length."""
        if accounts is None:
            accounts = traded_markets(config) if market is None else {"": TradedMarket(config, market=market)}
        self.config = config
        self.seed = seed
        self.accounts = accounts

    def __repr__(self) -> str:
        traded = ", ".join(self.accounts) if self.config.per_symbol else repr(self.account.market)
        return f"{type(self).__name__}({traded})"

    @property
    def account(self) -> TradedMarket:
        """The market of the first account; environments of other accounts have the same spaces."""
        return next(iter(self.accounts.values()))

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(symbol for account in self.accounts.values() for symbol in account.market.symbols)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The `market_fingerprint` of each account's data."""
        return tuple(account.fingerprint for account in self.accounts.values())

    def with_seed(self, seed: int) -> "TradingTask":
        """The same task on the same markets, with another seed."""
        task = copy(self)
        task.seed = seed
        return task

    def with_fractions(self, *, train: float, validation: float) -> "TradingTask":
        """The task with the splits of these fractions, on the same markets and features."""
        task = copy(self)
        task.config = replace(self.config, train_fraction=train, validation_fraction=validation)
        task.accounts = {
            symbol: account.with_fractions(train=train, validation=validation)
            for symbol, account in self.accounts.items()
        }
        return task

    @property
    def feature_warnings(self) -> tuple[FeatureWarning, ...]:
        """Doubts about the features, see `leaks`. Raises UserError about a feature that uses later data."""
        return tuple(
            replace(warning, sentence=_of_symbol(symbol, warning.sentence))
            for symbol, account in self.accounts.items()
            for warning in account.feature_warnings
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about the data and the features. Raises UserError as `feature_warnings`."""
        return self._said(lambda account: account.notices)

    def about_training(self, split: str) -> tuple[str, ...]:
        """Sentences if the evaluated policy was trained on bars of a split, or on bars of a different length."""
        return self._said(lambda account: account.about_training(split))

    def _said(self, about: Callable[[TradedMarket], Sequence[str]]) -> tuple[str, ...]:
        return tuple(_of_symbol(symbol, said) for symbol, account in self.accounts.items() for said in about(account))

    def train_env_fns(
        self, n: int, *, env_class: type[FastTradingEnv] = FastTradingEnv
    ) -> list[Callable[[], FastTradingEnv]]:
        """Picklable factories of n training environments; each holds only the bars of its training split.

        Raises UserError as `TradedMarket.require_trainable`, and if an account would have no environment.
        """
        if n < len(self.accounts):
            raise UserError(
                f"n_envs is {n}, but each of {counted(len(self.accounts), 'symbol')} ({listed(self.symbols)}) needs "
                f"an environment; set n_envs to {len(self.accounts)} or more, or use fewer symbols."
            )
        makers = [account.train_env_fn(env_class) for account in self.accounts.values()]
        return [makers[i % len(makers)] for i in range(n)]

    def batched_train_env(
        self, n: int, *, device: str | None = None, env_class: type[BatchedTradingEnv] = BatchedTradingEnv
    ) -> BatchedTradingEnv:
        """n training environments in one, see `BatchedTradingEnv` for `device`; each episode draws its account."""
        first = self.account
        for account in self.accounts.values():
            account.require_trainable()
        markets = [account.bars_of("train") for account in self.accounts.values()]
        return env_class(markets, n, first.rules, **first.training_settings(), device=device)

    def evaluation_env(
        self, split: str = "test", *, render_mode: Literal["rgb_array"] | None = None
    ) -> StatefulTradingEnv:
        """As `TradedMarket.evaluation_env`, of the first account."""
        return self.account.evaluation_env(split, render_mode=render_mode)

    def score(self, act: Act) -> float:
        """The score of a pass through the validation split, by `config.score`; higher is better."""
        return self.score_of(self.scored_paths(act))

    def score_of(self, paths: Sequence[EquityPath]) -> float:
        """The score of the passes of `scored_paths`."""
        return float(
            np.mean([account.score(path) for account, path in zip(self.accounts.values(), paths, strict=True)])
        )

    def scored_paths(self, act: Act) -> tuple[EquityPath, ...]:
        """The equity, bar by bar, of each account's pass in `score`."""
        return tuple(account.scored_path(act) for account in self.accounts.values())

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate on the test split, write the report into `folder`, and return what to print."""
        return str(self.evaluate(act, "test", folder, page=True)["summary"])

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

        Returns {"agent", "buy_and_hold", "equal_weight", "random": each a dict of `summary.summarize`, "table" and the
        shorter "summary": str to print}; with `per_symbol`, for all accounts together, with each symbol's figures
        in "symbols".
        folder: gets ledger.csv, trades.csv, evaluation.json and equity.png; None writes nothing.
        page: also write report.html and metrics.json, which include runs of its orders at other fees and later bars.
        certify: replay the ledger with another engine; raises CertificationFailed if its equity differs.
        look: the record if this opens the test split; None: an evaluation into `folder`. It counts as one look.
        """
        look = look or evaluation_look(folder)
        into = None if folder is None else Path(folder)
        each: dict[str, dict[str, Any]] = {}
        evaluations: list[Evaluation] = []
        for symbol, account in self.accounts.items():
            own = into if into is None or not self.config.per_symbol else into / SYMBOLS_FOLDER / _as_folder(symbol)
            comparison = self._compare(account, act, split, look)
            each[symbol] = _report_on(account, comparison, split, own, page=page, certify=certify)
            evaluations.append(comparison.evaluation)
        if not self.config.per_symbol:
            return each[""]
        together, lines = evaluation_together(evaluations), _table_of_each(each)
        if into is not None:
            _write_together(into, together, each, lines, page=page)
        of_symbols = {symbol: {name: figures[name] for name in COLUMNS} for symbol, figures in each.items()}
        texts = {"table": results_table(together), "summary": results_summary(together)}
        texts = {name: f"{text}\n\n{text_table(lines)}" for name, text in texts.items()}
        return {**together.figures, "symbols": of_symbols, **texts}

    def compare(self, act: Act, split: str = "test", *, look: Look | None = None) -> Comparison:
        """Run `act` and its baselines through a split of the first account.

        A look at the test split is recorded first.
        """
        return self._compare(self.account, act, split, look or evaluation_look(None))

    def _compare(self, account: TradedMarket, act: Act, split: str, look: Look) -> Comparison:
        if split in LOOKED_AT:
            record_look(look, (account.fingerprint,))
        return account.compare(act, split, seed=self.seed)

    def state(self) -> dict[str, Any]:
        """The state that a trained policy depends on, as primitives and lists, for a checkpoint.

        With `per_symbol`, it holds the state of each symbol with a fingerprint of its data.
        """
        if not self.config.per_symbol:
            return self.account.state()
        return {
            EACH_SYMBOL_KEY: {
                symbol: {**account.state(), "fingerprint": account.bars_digest}
                for symbol, account in self.accounts.items()
            }
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], config: TradingConfig, seed: int = 0) -> "TradingTask":
        """The task for evaluating a trained policy: observations and actions as in training, the rest from `config`.

        The data may differ from the training data, but a single account needs the same number of symbols. With several
        accounts, a symbol that was not in training is scaled by its own training split.
        Raises UserError if `state` is not from `state()`, or the data are invalid.
        """
        if EACH_SYMBOL_KEY not in state:
            trained = read_state(state, config)
            return cls(trained.config, seed, accounts={"": TradedMarket.as_trained(trained)})
        try:
            of_symbols = {symbol: read_state(own, config) for symbol, own in dict(state[EACH_SYMBOL_KEY]).items()}
            config = replace(next(iter(of_symbols.values())).config, per_symbol=True)
        except (TypeError, ValueError, AttributeError, StopIteration) as error:
            raise UserError(f"This is not the state of a trading task of several symbols: {error!r}.") from error
        accounts = traded_markets(config, scalers={symbol: own.scaler for symbol, own in of_symbols.items()})
        for symbol, account in accounts.items():
            account.trained_bars = of_symbols[symbol].bars if symbol in of_symbols else None
        return cls(config, seed, accounts=accounts)

    @classmethod
    def scaled_as(cls, state: Mapping[str, Any], config: TradingConfig, seed: int = 0) -> "TradingTask":
        """The task of these settings, with features scaled as in the task of `state`.

        A symbol that is not in `state` is scaled by its own training split. Raises UserError if the two tasks observe
        different features.
        """
        try:
            states = dict(state[EACH_SYMBOL_KEY]) if config.per_symbol else {"": state}
            scalers = {symbol: FeatureScaler.from_state(own["scaler"]) for symbol, own in states.items()}
            one = next(iter(states.values()))
            observed = {"features": tuple(one["features"]), "window": one["window"]}
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise UserError(
                f"The policy was not trained with per_symbol {written(config.per_symbol)}; set it as in its training."
            ) from error
        for name, theirs in observed.items():
            if getattr(config, name) != theirs:
                raise UserError(
                    f"The policy was trained with {name} {written(theirs)}, but the settings have "
                    f"{written(getattr(config, name))}; use the value of its training."
                )
        return cls(config, seed, accounts=traded_markets(config, scalers=scalers))


def _report_on(
    account: TradedMarket, comparison: Comparison, split: str, folder: Path | None, *, page: bool, certify: bool
) -> dict[str, Any]:
    """The result of `TradingTask.evaluate` for one account, and its files."""
    evaluation, env, actions = comparison
    lines = [results_table(evaluation)]
    if folder is not None:
        write_report(folder, evaluation)
    if certify:
        lines.append(certify_ledger(evaluation.agent, account.rules, account.market.periods_per_year))
    if page and folder is not None:
        bars = account.split(split)
        observed = Observed(account.features.columns, account.features.values[bars.start : bars.stop])
        sensitivity = analyze_sensitivity(env, evaluation.agent, actions)
        lines[1:1] = sensitivity.sentences()
        write_page(
            folder / PAGE_FILE,
            evaluation,
            sensitivity,
            observed=observed,
            notes=lines[-1:] if certify else (),
        )
        write_metrics(folder / "metrics.json", evaluation, sensitivity)
    return {**evaluation.figures, "table": "\n".join(lines), "summary": results_summary(evaluation)}


def _write_together(
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


def _of_symbol(symbol: str, sentence: str) -> str:
    return sentence if sentence.startswith(symbol) else f"{symbol}: {sentence}"


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
    """A symbol as a folder name: BTC/USD becomes BTC-USD."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in symbol).lstrip(".") or "-"
