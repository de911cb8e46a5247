"""What each cause is worth: a chain of backtests, each of which switches one more cause to what was met.

The first backtest knows of nothing; the last has everything, and is the session's ledger but for rounding. A cause is
worth the difference of the final equities before and after it is switched on. The differences telescope, so they add up
to the whole difference. What the last backtest leaves is "unexplained" if a step of the session does not follow from
what was met, and else "rounding". A cause that stands alone is therefore worth exactly what running the session again
without it says. With several causes the order of the chain, that of `CAUSES`, matters.

Within a cause, what it changed at once is measured for each bar and symbol at the close of its bar: the same account
takes the same step with the cause and without it. The remainder is what followed from it: other cash, other holdings
and other decisions later on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.reconciliation.backtest import SessionBacktest, rows_of, same_bits
from ml_pipeline.live.reconciliation.causes import CAUSES, NOT_FILLED, Cause, Deviation, deviations_of
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.live.reconciliation.replay import RealizedFills, ReplayAccount, ReplayEnv
from ml_pipeline.runtime.acting import ActsInEpisodes
from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol
from ml_pipeline.trading.market.data import FloatArray

# A step that ends this part of the equity away from the session's is not explained by what was met.
_EXPLAINED = 1e-9


class CauseWorth(NamedTuple):
    """What a cause took from the final equity (below 0) or added to it, in money.

    times: bars and symbols that it changed. at_once: the part that the bars of their fills show; followed: the rest.
    """

    cause: Cause
    times: int
    worth: float
    at_once: float
    followed: float


class DivergentBar(NamedTuple):
    """A bar and symbol at which session and backtest part. bar: row of the ledger. at_once: money, see `CauseWorth`."""

    cause: Cause
    bar: int
    symbol: str
    at_once: float
    evidence: str


@dataclass(frozen=True, eq=False)
class Attribution:
    """The difference of the final equities, session less backtest, by cause.

    rounding: what the causes leave. backtest: its ledger, of the corrected bars where there are some. rows: the
    session's, one row per bar.
    """

    backtest: Ledger
    rows: Ledger
    causes: Sequence[CauseWorth] = ()
    divergent: Sequence[DivergentBar] = ()
    rounding: float = 0.0

    @property
    def difference(self) -> float:
        return _end(self.rows) - _end(self.backtest)


def attribute(record: RecordedSession, backtest: SessionBacktest) -> Attribution:
    """Run the session's models again, without and with what was met."""
    rows = rows_of(record, backtest)
    is_corrected = backtest.corrected is not None
    pure = backtest.run(corrected=is_corrected)
    if same_bits(pure, rows):
        return Attribution(pure, rows)
    known = deviations_of(record, backtest, rows)
    explained = _Walk(backtest, rows, known).explained()
    return _chain(backtest, rows, pure, explained, is_corrected=is_corrected)


class _Explained(NamedTuple):
    """Deviations, with the quantities of those that changed one, by bar and asset. unexplained: steps that remain."""

    deviations: Sequence[Deviation]
    quantities: Mapping[tuple[int, int], float]
    unexplained: Sequence[DivergentBar] = ()

    def realized(self, backtest: SessionBacktest, causes: Sequence[Cause]) -> RealizedFills:
        """What was realized, of these causes alone. Bars are counted as environments do."""
        realized, offset = backtest.nothing_realized(), backtest.offset
        for each in self.deviations:
            if each.cause not in causes:
                continue
            bar = each.bar + offset
            assets = slice(None) if each.asset is None else each.asset
            if each.cause == "partial_fill" or each.beside:
                assert each.asset is not None
                realized.quantities[bar, each.asset] = self.quantities[each.bar, each.asset]
            elif each.closes:
                realized.closing[bar] = True
            elif each.cause == "missed_bar":
                realized.skipped[bar] = True
            elif each.cause in NOT_FILLED:
                realized.blocked[bar, assets] = True
            elif each.cause in {"delay", "fill_price"}:
                realized.prices[bar, assets] = each.value
            elif each.cause == "costs" and each.asset is None:
                realized.charges[bar] += each.value
            elif each.cause == "costs":
                realized.cost_rates[bar, assets] = each.value
        return realized


class _Walk:
    """Goes along the session: from each of its rows, does one step with what was met end in the next row?

    Where it does not, the row is unexplained. The walk also finds which orders were filled to another quantity because
    others of their bar were not.
    """

    def __init__(self, backtest: SessionBacktest, rows: Ledger, known: Sequence[Deviation]) -> None:
        self._backtest, self._rows = backtest, rows
        self._symbols = backtest.record.market.symbols
        self._positions, self._filled = per_symbol(rows, "position"), per_symbol(rows, "filled")
        self._quantities = {(e.bar, e.asset): 0.0 for e in known if e.cause == "partial_fill" and e.asset is not None}
        self._sharing: dict[int, Cause] = {}  # by bar, why its other orders may have another quantity
        for each in known:
            if (each.cause in NOT_FILLED or each.cause == "partial_fill") and each.cause != "missed_bar":
                self._sharing.setdefault(each.bar, each.cause)
        self._beside: list[Deviation] = []
        self._known = known
        draft = _Explained(known, self._quantities)
        self._realized = draft.realized(backtest, [cause for cause in CAUSES if cause != "partial_fill"])
        self._at_decision = any(each.cause == "sized_before_fill" for each in known)
        self._envs: dict[int, ReplayEnv] = {}
        self._entries: list[float] | None = None
        self._unexplained: list[DivergentBar] = []

    def explained(self) -> _Explained:
        self._backtest.run(self._realized, at_decision=self._at_decision, lead=self._lead, watch=self._watch)
        return _Explained([*self._known, *self._beside], self._quantities, self._unexplained)

    def _lead(self, k: int, env: ReplayEnv) -> None:
        rows = self._rows
        cash, equity = float(rows["cash"][k]), float(rows["equity"][k])
        env.set_account(cash=cash, equity=equity, holdings=self._positions[k].tolist())
        if self._entries is not None:
            env.account.entries[:] = self._entries

    def _watch(self, k: int, env: ReplayEnv, action: Any) -> None:
        model = self._backtest.model_at(k)
        trial = self._envs.get(id(model))
        if trial is None:
            trial = self._envs[id(model)] = self._backtest.env(model, self._realized, at_decision=self._at_decision)
        trial.stand_where(env)
        account = trial.try_step(action)
        if k in self._sharing and (quantities := self._measured(k, account)):
            bar = trial.bar - 1
            self._realized.quantities[bar, list(quantities)] = list(quantities.values())
            trial.stand_where(env)
            account = trial.try_step(action)
            self._realized.quantities[bar] = np.nan
        self._entries = account.entries.copy()
        self._compare(k, account)

    def _measured(self, k: int, account: ReplayAccount) -> dict[int, float]:
        """The quantities of bar k, by asset, that are not those which `account` filled."""
        found = {}
        for a, quantity in enumerate(account.filled):
            realized = float(self._filled[k + 1, a])
            if (k, a) not in self._quantities:
                if abs(realized - quantity) <= _EXPLAINED * max(abs(realized), abs(quantity)):
                    continue
                evidence = "another quantity, for want of the other orders of its bar"
                self._beside.append(Deviation(self._sharing[k], k, a, evidence, beside=True))
            found[a] = self._quantities[k, a] = realized
        return found

    def _compare(self, k: int, account: ReplayAccount) -> None:
        rows = self._rows
        scale = _EXPLAINED * max(abs(float(rows["equity"][k])), 1e-9)
        off = np.abs(np.array(account.holdings) - self._positions[k + 1]) * np.array(account.closes) > scale
        if not off.any() and abs(account.cash - float(rows["cash"][k + 1])) <= scale:
            return
        symbols = [self._symbols[a] for a in np.flatnonzero(off)] or [""]
        money = float(rows["equity"][k + 1]) - account.equity
        for symbol in symbols:
            evidence = "another quantity than the backtest's" if symbol else "other money than the backtest's"
            self._unexplained.append(DivergentBar("unexplained", k + 1, symbol, money / len(symbols), evidence))


def _chain(
    backtest: SessionBacktest, rows: Ledger, pure: Ledger, explained: _Explained, *, is_corrected: bool
) -> Attribution:
    present = [cause for cause in CAUSES if any(each.cause == cause for each in explained.deviations)]
    if is_corrected:
        present = ["corrected_bar", *present]
    worths, divergent = list[CauseWorth](), list[DivergentBar]()
    equity, symbols = _end(pure), backtest.record.market.symbols
    for i, cause in enumerate(present):
        on, before = present[: i + 1], present[:i]
        own = [each for each in explained.deviations if each.cause == cause]
        probe = _Probe(backtest, explained.realized(backtest, before), own, at_decision="sized_before_fill" in before)
        ledger = backtest.run(explained.realized(backtest, on), at_decision="sized_before_fill" in on, watch=probe)
        probe.finish()
        found = [
            DivergentBar(cause, k + 1, symbols[a], worth, probe.evidence(k, a)) for (k, a), worth in probe.worth.items()
        ]
        times = len(backtest.record.corrections) if cause == "corrected_bar" else len(found)
        if times or _end(ledger) != equity:
            worths.append(_worth(cause, times, _end(ledger) - equity, found))
        divergent += found
        equity = _end(ledger)
    if explained.unexplained:
        left = _end(rows) - equity
        worths.append(_worth("unexplained", len(explained.unexplained), left, explained.unexplained))
        divergent += explained.unexplained
        equity = _end(rows)
    divergent.sort(key=lambda each: (each.bar, each.symbol))
    return Attribution(pure, rows, worths, divergent, _end(rows) - equity)


def _worth(cause: Cause, times: int, worth: float, divergent: Sequence[DivergentBar]) -> CauseWorth:
    at_once = sum(each.at_once for each in divergent)
    return CauseWorth(cause, times, worth, at_once, worth - at_once)


class _Probe:
    """Watches a backtest of the chain, and takes each step of the cause's bars without the cause beside it."""

    def __init__(
        self, backtest: SessionBacktest, before: RealizedFills, deviations: Sequence[Deviation], *, at_decision: bool
    ) -> None:
        self._backtest, self._before, self._at_decision = backtest, before, at_decision
        self._happenings: dict[int, list[Deviation]] = {}
        for each in deviations:
            self._happenings.setdefault(each.bar, []).append(each)
        self._envs: dict[int, ReplayEnv] = {}
        self._open: tuple[int, ReplayEnv, FloatArray] | None = None
        self.worth: dict[tuple[int, int], float] = {}

    def __call__(self, k: int, env: ReplayEnv, action: Any) -> None:
        self.finish()
        if k not in self._happenings:
            return
        model = self._backtest.model_at(k)
        other = self._envs.get(id(model)) or self._envs.setdefault(
            id(model), self._backtest.env(model, self._before, at_decision=self._at_decision)
        )
        other.stand_where(env)
        if action is None and not isinstance(model.act, ActsInEpisodes):  # asking a policy with memory would change it
            action = model.act(env.observation)
        account = other.try_step(action)
        self._open = k, env, account.gains(other.bar - 1)

    def finish(self) -> None:
        """Compare the step that was taken since with the one without the cause."""
        if self._open is None:
            return
        k, env, without = self._open
        self._open = None
        gained = env.account.gains(env.bar - 1) - without
        own = self._happenings[k]
        named = {each.asset for each in own}
        money = sum(each.value for each in own if each.cause == "costs" and each.asset is None)
        for a in range(len(gained)):
            if (a in named or None in named) and gained[a]:
                self.worth[k, a] = float(gained[a])
        if money:  # of the account, and not of a symbol: shown with the first
            self.worth[k, 0] = self.worth.get((k, 0), 0.0) - money

    def evidence(self, k: int, asset: int) -> str:
        return "; ".join(each.evidence for each in self._happenings[k] if each.asset in {None, asset} and each.evidence)


def _end(ledger: Ledger) -> float:
    return float(ledger["equity"][-1])
