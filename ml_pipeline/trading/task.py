"""Trading as a task for a trainer: from settings to environments to train on, and to an honest verdict at the end."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import counted
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket, prepare_market
from ml_pipeline.trading.envs.rewards import make_reward
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, buy_and_hold, equal_weight, random_policies, run_policy
from ml_pipeline.trading.evaluation.certify import certify_ledger
from ml_pipeline.trading.evaluation.page import write_metrics, write_page
from ml_pipeline.trading.evaluation.report import results_table, write_report
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.evaluation.sensitivity import analyze_sensitivity
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.leaks import refuse_leaks
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.splits import Split, chronological_split, whole
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig

# A market of more bytes than this is mapped by the workers, and not sent to each.
_WORTH_MAPPING = 4_000_000
# So many constant features are named one by one.
_MOST_NAMED = 3


class TradingTask:
    """Loads the market, splits it by time, and scales its features by the training split alone.

    name: what runs on it are called. market: in place of the one that `config` names. scaler: in place of one fitted
    here. splits: in place of those that `config` describes. seed: of the random policies in an evaluation. notices:
    sentences about what the data needed, for the user.
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
        self._given_splits = splits
        self.config = config
        self.seed = seed
        self.market = market = market or load_configured_market(config)
        self.notices = market.notices
        self.rules = config.rules(len(market.symbols))
        features = compute_features(market, config.features)
        self.features = features
        self.first_bar = features.first_bar + config.window - 1  # the first with a window of complete features
        if scaler is None:
            train = self.split("train")
            rows = features.values[train.start - config.window + 1 : train.stop]
            scaler = FeatureScaler.fit(rows)
            self.notices += _about_constants(features.columns, scaler(rows), ~np.isnan(rows))
        self.scaler = scaler
        self._prepared = prepare_market(market, features, scaler)

    def train_env_fns(self, n: int) -> list[Callable[[], FastTradingEnv]]:
        """Factories of n training environments, to be pickled; they hold the bars of the training split alone.

        Raises UserError where a feature sees ahead, see `leaks`, and where the rules would refuse what exploring tries.
        """
        self.require_trainable()
        market = self.bars_of("train")
        make = partial(
            FastTradingEnv,
            market.mapped() if market.n_bytes > _WORTH_MAPPING else market,
            self.rules,
            **self.training_settings(),
        )
        return [make] * n

    def batched_train_env(self, n: int, *, device: str | None = None) -> BatchedTradingEnv:
        """The same n training environments as one; see `BatchedTradingEnv` for `device`."""
        self.require_trainable()
        return BatchedTradingEnv(self.bars_of("train"), n, self.rules, **self.training_settings(), device=device)

    def training_settings(self) -> dict[str, Any]:
        """What an environment to train in is given besides bars and rules."""
        reward = make_reward(self.config.reward, self.config.reward_scale)
        return {"window": self.config.window, "episode_length": self.config.episode_length, "reward": reward}

    def refuse_leaks(self) -> None:
        """Raise UserError where a feature sees ahead, see `leaks`."""
        refuse_leaks(self.market, self.config.features, self.features)

    def require_trainable(self) -> None:
        """Raise UserError where a feature sees ahead, and where the rules would refuse what exploring tries."""
        self.refuse_leaks()
        if self.rules.may_refuse(len(self.market.symbols)):
            raise UserError(
                'on_limit "refuse" would end training at the first action beyond max_position '
                f'({self.rules.max_position:g}) or max_gross ({self.rules.max_gross:g}); train with on_limit "clip".'
            )

    def evaluation_env(self, split: str = "test") -> StatefulTradingEnv:
        """One pass through the "train", "validation" or "test" split, or through "all" bars."""
        return StatefulTradingEnv(self.bars_of(split), self.rules, window=self.config.window)

    def score(self, act: Act) -> float:
        """ln(V_end / V_start) of a pass through the validation split: what the best policy is chosen by."""
        equity = run_policy(self.evaluation_env("validation"), act)["equity"]
        return float(np.log(equity[-1] / equity[0])) if equity[-1] > 0 else -math.inf

    def report(self, act: Act, folder: Path) -> str:
        """The verdict: one pass through the test split, its files written into `folder`, and a table to print."""
        return str(self.evaluate(act, "test", folder, page=True)["table"])

    def evaluate(
        self,
        act: Act,
        split: str = "test",
        folder: str | Path | None = None,
        *,
        page: bool = False,
        certify: bool = False,
    ) -> dict[str, Any]:
        """Run `act`, observation -> action, through a split, beside holding and random policies.

        Returns {"agent", "buy_and_hold", "equal_weight", "random": each a dict of `metrics.summarize`, "table": a str
        to print}. Where a folder is given, ledger.csv, trades.csv, evaluation.json and equity.png are written there,
        and with `page` report.html and metrics.json, which add the same run at other fees and with late orders.
        certify: have another engine replay the ledger; raises CertificationFailed where it finds another equity.
        """
        env = self.evaluation_env(split)
        agent = run_policy(env, act)
        limits = dict(env.limit_counts)
        evaluation = Evaluation(
            split=split,
            agent=agent,
            buy_and_hold=buy_and_hold(env),
            equal_weight=equal_weight(env),
            random=random_policies(env, seed=self.seed, turnover_of=agent),
            calendar=self.market.calendar,
            rules=self.rules,
            limits=limits,
        )
        said = [results_table(evaluation)]
        if folder is not None:
            write_report(Path(folder), evaluation)
        if certify:
            said.append(certify_ledger(agent, self.rules, self.market.periods_per_year))
        if page and folder is not None:
            sensitivity = analyze_sensitivity(env, act)
            said.insert(1, sensitivity.sentence())
            write_page(Path(folder) / "report.html", evaluation, sensitivity, certified=said[-1] if certify else None)
            write_metrics(Path(folder) / "metrics.json", evaluation, sensitivity)
        return {**evaluation.figures, "table": "\n".join(said)}

    def split(self, name: str) -> Split:
        """The named split's bars. Raises UserError where there is none of that name, or the bars do not suffice."""
        if name == "all":
            return whole(self.first_bar, self.market.n_bars, source=self.market.source)
        if name not in self._splits:
            raise UserError(f'There is no split "{name}". {nearest(name, [*self._splits, "all"])}')
        return self._splits[name]

    @cached_property
    def _splits(self) -> Mapping[str, Split]:
        if self._given_splits is not None:
            return self._given_splits
        return chronological_split(
            self.first_bar,
            self.market.n_bars,
            train_fraction=self.config.train_fraction,
            validation_fraction=self.config.validation_fraction,
            embargo_bars=self.config.embargo_bars,
            source=self.market.source,
        )

    def bars_of(self, name: str) -> PreparedMarket:
        """The bars of the named split, and before them those that its first window looks back on."""
        split = self.split(name)
        return self._prepared.bars(split.start - self.config.window + 1, split.stop)

    def state(self) -> dict[str, Any]:
        """What a trained policy depends on, as primitives and lists, for its checkpoint."""
        return {
            "symbols": list(self.market.symbols),
            "features": list(self.config.features),
            "window": self.config.window,
            "action_mode": self.rules.action_mode,
            "allow_short": self.rules.allow_short,
            "scaler": self.scaler.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], config: TradingConfig, seed: int = 0) -> "TradingTask":
        """The task to judge a trained policy on: what it sees and how it acts is as trained, the rest as in `config`.

        The data of `config` may be others than those trained on, if there are as many symbols. Raises UserError where
        there are not, or where `state` is none.
        """
        try:
            as_trained = {name: state[name] for name in ("window", "action_mode", "allow_short")}
            config = replace(config, features=tuple(state["features"]), **as_trained)
            symbols, scaler = tuple(state["symbols"]), FeatureScaler.from_state(state["scaler"])
        except (KeyError, TypeError) as error:
            raise UserError(f"This is not the state of a trading task: {error!r}.") from error
        market = load_configured_market(config)
        if not config.symbols and set(symbols) <= set(market.symbols):
            market = market.select(symbols)
        if len(market.symbols) != len(symbols):
            raise UserError(
                f"The policy was trained on {counted(len(symbols), 'symbol')} ({', '.join(symbols)}), but the data "
                f"have {len(market.symbols)} ({', '.join(market.symbols)}); bring data of as many symbols."
            )
        return cls(config, seed, market=market, scaler=scaler)


def _about_constants(names: tuple[str, ...], scaled: NDArray[np.float32], known: NDArray[np.bool_]) -> tuple[str, ...]:
    """A sentence about features that are the same in all rows, (T, D), where there are any."""
    still = [names[i] for i in np.flatnonzero(known.any(axis=0) & ~scaled.any(axis=0))]
    if not still:
        return ()
    more = f" and {counted(len(still) - _MOST_NAMED, 'other')}" if len(still) > _MOST_NAMED else ""
    shown = ", ".join(still[:_MOST_NAMED])
    return (f"constant in the training split, and seen as 0: {shown}{more}; leave such features out",)


def load_configured_market(config: TradingConfig) -> MarketData:
    """The market that `config` names: its data file, or the built-in one."""
    if config.data is not None:
        return load_market(config.data, symbols=config.symbols or None, bar_time=config.bar_time)
    market = synthetic_market()
    return market.select(config.symbols) if config.symbols else market
