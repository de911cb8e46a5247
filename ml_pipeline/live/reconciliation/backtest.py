"""Run the models of a session over its bars again, as an evaluation does, with or without realized fills.

n bars of the session; bar k of the session is row k of its ledger.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.live.reconciliation.recorded import ModelInTurn, RecordedSession
from ml_pipeline.live.reconciliation.replay import BeginWith, RealizedFills, ReplayEnv
from ml_pipeline.runtime.acting import begin_episode
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.prepared_market import PreparedMarket, prepare_market
from ml_pipeline.trading.evaluation.baselines import Act
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.times import as_text

Watch = Callable[[int, ReplayEnv, Any], None]
"""Called with (bar of the session, environment, action or None) before each step."""
Lead = Callable[[int, ReplayEnv], None]
"""Called with (bar of the session, environment) before each observation; it may change the account."""


@dataclass(frozen=True)
class _Turn:
    """A model, and the bars of the session at which it decides: first..stop-1."""

    model: ModelInTurn
    first: int
    stop: int


class SessionBacktest:
    """The bars of a session, prepared for its models; `run` may be called repeatedly.

    Raises UserError if bars of the session are missing from the record, or too few for a model's window.
    """

    def __init__(self, record: RecordedSession) -> None:
        self.record = record
        market, times = record.market, record.times
        self.first = int(np.searchsorted(market.times, times[0]))
        stop = int(np.searchsorted(market.times, times[-1], side="right"))
        if self.first == market.n_bars or market.times[self.first] != times[0]:
            raise UserError(
                f"The session's ledger begins at {as_text(times[0])}, but the recorded bars have no such bar; "
                "the two files are not of the same session."
            )
        self.stop = stop
        self.n_bars = stop - self.first
        self.times = market.times[self.first : stop]
        if self.n_bars < 2:
            raise UserError(
                f"The session has {counted(self.n_bars, 'bar')}, so nothing was ordered yet; reconcile it when it has "
                "two."
            )
        self._turns = self._in_turn()
        # Each model's window needs bars before its first decision; all environments count bars from one start.
        self.start = max(0, min(self.first + turn.first - turn.model.window + 1 for turn in self._turns))
        self.start = min(self.start, self.first)
        for turn in self._turns:
            if self.first + turn.first - turn.model.window + 1 < 0:
                raise UserError(
                    f"{turn.model.name} observes {turn.model.window} bars, but only {self.first + turn.first + 1} are "
                    "recorded at its first decision; the bars that warmed it up are missing."
                )
        self._prepared: dict[tuple[int, bool], PreparedMarket] = {}

    @property
    def offset(self) -> int:
        """Number of bars before the session's first one at which environments start counting."""
        return self.first - self.start

    def nothing_realized(self) -> RealizedFills:
        return RealizedFills.nothing(self.stop - self.start, len(self.record.market.symbols))

    @cached_property
    def interest_days(self) -> FloatArray:
        """The days of interest that the backtest charges at the close of each bar of the session, (n,)."""
        return self.env(self.record.models[0], None).interest_days[self.offset :]

    @cached_property
    def corrected(self) -> MarketData | None:
        """The bars with later corrections; None if none of the session's own bars was corrected."""
        market = self.record.corrected
        if market is None or not np.array_equal(market.times, self.record.market.times):
            return None
        return market

    def run(
        self,
        realized: RealizedFills | None = None,
        *,
        corrected: bool = False,
        at_decision: bool = False,
        lead: Lead | None = None,
        watch: Watch | None = None,
    ) -> Ledger:
        """The ledger of the session's models over its bars, with the session's initial cash.

        corrected: use the bars with later corrections. at_decision: size orders at the close of their decision. The
        ledger ends at ruin.
        """
        env: ReplayEnv | None = None
        for turn in self._turns:
            following = self.env(turn.model, realized, corrected=corrected, at_decision=at_decision)
            if env is None:
                following.reset()
            else:
                following.continue_from(env)
                following.take_choices_from_holdings()
            env = following
            begin_episode(turn.model.act)
            if not self._run_turn(env, turn, realized, lead, watch):
                break
        assert env is not None
        return env.ledger()

    def _run_turn(
        self, env: ReplayEnv, turn: _Turn, realized: RealizedFills | None, lead: Lead | None, watch: Watch | None
    ) -> bool:
        """Run the bars of one model. Returns False if the account has ended."""
        observation = env.observation
        for k in range(turn.first, turn.stop):
            if lead is not None:
                lead(k, env)
                observation = env.observation
            is_skipped = realized is not None and realized.skipped[env.bar]
            action = None if is_skipped else _possible(env, turn.model.act, observation)
            if watch is not None:
                watch(k, env, action)
            bar = env.bar
            observation, over = env.skip() if action is None else env.take(action)
            if realized is not None and realized.closing[bar]:  # the model continues from what is left
                env.take_choices_from_holdings()
            if over:
                return False
        return True

    def env(
        self, model: ModelInTurn, realized: RealizedFills | None, *, corrected: bool = False, at_decision: bool = False
    ) -> ReplayEnv:
        """An environment over the bars of the session and the earlier ones that windows need."""
        record = self.record
        rules = sized_at_decision(model.rules) if at_decision else model.rules
        days = record.ledger.get("interest_days")
        has_last = record.times[-1] == self.times[-1]
        return ReplayEnv(
            self._market_of(model, corrected=corrected),
            rules,
            window=model.window,
            first_bar=self.offset,
            realized=realized,
            closes_at_end=record.closes_at_end,
            days_at_end=float(days[-1]) if days is not None and has_last else None,
            begin_with=self._begin_with,
            flows=self._flows,
        )

    @cached_property
    def _flows(self) -> FloatArray | None:
        """Money that moved after each bar of an environment, (T - 1,); None if none did."""
        moved = self.record.flows_at(self.times)[1:]
        return np.concatenate([np.zeros(self.offset), moved]) if moved.any() else None

    @cached_property
    def _begin_with(self) -> BeginWith | None:
        """Positions that the session took over, or cash that changed before its first bar."""
        ledger = self.record.ledger
        holdings = tuple(float(ledger[f"position_{symbol}"][0]) for symbol in self.record.market.symbols)
        cash, equity = float(ledger["cash"][0]), float(ledger["equity"][0])
        is_changed = any(holdings) or cash != self.record.rules.initial_cash
        return BeginWith(cash, equity, holdings) if is_changed else None

    def model_at(self, k: int) -> ModelInTurn:
        """The model that decides at the close of bar k of the session."""
        return next(turn.model for turn in reversed(self._turns) if turn.first <= k)

    def _market_of(self, model: ModelInTurn, *, corrected: bool) -> PreparedMarket:
        key = id(model), corrected
        if key not in self._prepared:
            market = self.corrected if corrected else self.record.market
            assert market is not None
            market = market.bars(0, self.stop) if self.stop < market.n_bars else market
            seen = market if self.record.observed is None or corrected else self.record.observed.bars(0, market.n_bars)
            features = compute_features(seen, model.features)
            if len(model.scaler.mean) != len(features.columns):
                raise UserError(
                    f"{model.name} observes {counted(len(model.scaler.mean), 'feature')}, but its features give "
                    f"{len(features.columns)} on the session's bars; the model is not the one that traded."
                )
            prepared = prepare_market(market, features, model.scaler, model.rules)
            self._prepared[key] = prepared.bars(self.start, self.stop)
        return self._prepared[key]

    def _in_turn(self) -> list[_Turn]:
        models = sorted(self.record.models, key=lambda model: model.first_bar)
        if not models:
            raise UserError("The session has no model, so there is nothing to run.")
        firsts = [max(0, int(np.searchsorted(self.times, model.first_bar))) for model in models]
        firsts[0] = 0  # the first model decides from the session's start
        stops = [*firsts[1:], self.n_bars - 1]
        turns = zip(models, firsts, stops, strict=True)
        return [_Turn(model, first, min(stop, self.n_bars - 1)) for model, first, stop in turns if first < stop]


def _possible(env: ReplayEnv, act: Act, observation: NDArray[np.float32]) -> Any:
    """The action; None if it is not finite or the rules refuse it, because the live loop then trades nothing."""
    try:
        action = act(observation)
    except UserError:  # of a policy that checks its action, as deployed ones do
        return None
    return action if env.can_read(action) else None


def sized_at_decision(rules: TradingRules) -> TradingRules:
    """The same rules with orders sized at the close of their decision."""
    return replace(rules, size_at="decision")


def rows_of(record: RecordedSession, backtest: SessionBacktest) -> Ledger:
    """The session's ledger with a row for each bar; a missing row has the previous positions at that bar's closes."""
    ledger, times = record.ledger, backtest.times
    if np.array_equal(ledger["time"], times):
        return ledger
    latest = np.searchsorted(ledger["time"], times, side="right") - 1
    own = ledger["time"][latest] == times
    closes = record.market.close[backtest.first : backtest.stop]
    rows: Ledger = {"time": times, **{name: ledger[name][latest].copy() for name in ("cash", "costs_paid")}}
    if "interest_days" in ledger:
        rows["interest_days"] = np.where(own, ledger["interest_days"][latest], 0.0)
    worth = np.zeros(len(times))
    for name, values in ledger.items():
        if name in rows or name in {"time", "equity"}:
            continue
        rows[name] = np.where(own, values[latest], np.nan if "price_" in name else 0.0)
    for a, symbol in enumerate(record.market.symbols):
        rows[f"close_{symbol}"] = np.where(own, ledger[f"close_{symbol}"][latest], closes[:, a])
        rows[f"position_{symbol}"] = ledger[f"position_{symbol}"][latest].copy()
        worth += rows[f"position_{symbol}"] * np.nan_to_num(rows[f"close_{symbol}"])
    rows["equity"] = np.where(own, ledger["equity"][latest], rows["cash"] + worth)
    return rows


def same_bits(first: Ledger, second: Ledger) -> bool:
    """Whether two ledgers have the same columns with the same bits; NaN equals NaN."""
    return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)


def _same(first: Any, second: Any) -> bool:
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    return first.shape == second.shape and bool(np.all((first == second) | (np.isnan(first) & np.isnan(second))))
