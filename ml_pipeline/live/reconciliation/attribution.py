"""The worth of each cause, from a chain of backtests, each of which adds one more cause as it happened.

The first backtest has no cause; the last has all of them, and equals the session's ledger except for rounding. The
worth of a cause is the difference of the final equities with and without it. These differences telescope, so they add
up to the whole difference. The remainder after the last backtest is "unexplained" if a step of the session does not
follow from its records, and otherwise "rounding". A single cause is worth exactly what the session without it would
have gained. With several causes, their order, that of `CAUSES`, matters.

The immediate effect of a cause is measured for each bar and symbol at the close of its bar: the same account takes the
same step with the cause and without it. The remainder are its consequences: other cash, holdings and later decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.live.reconciliation.backtest import SessionBacktest, rows_of, same_bits
from ml_pipeline.live.reconciliation.causes import CAUSES, NOT_FILLED, Cause, Deviation, deviations_of, limit_prices
from ml_pipeline.live.reconciliation.orders import AssumedFills, Place, RecordedOrders
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.live.reconciliation.replay import RealizedFills, ReplayAccount, ReplayEnv
from ml_pipeline.runtime.acting import ActsInEpisodes
from ml_pipeline.trading.accounts.ledger import Ledger, per_symbol
from ml_pipeline.trading.market.data import FloatArray

# A step whose result differs from the session's by more than this fraction of equity is unexplained.
_EXPLAINED = 1e-9
# Brokers round quantities by less than this.
_LARGEST_STEP = 1.0


class CauseWorth(NamedTuple):
    """The amount that a cause took from (negative) or added to the final equity, in money.

    times: number of bars and symbols that it changed. at_once: the part in the bars of their fills; followed: the rest.
    """

    cause: Cause
    times: int
    worth: float
    at_once: float
    followed: float


class DivergentBar(NamedTuple):
    """A bar and symbol at which session and backtest differ. bar: row of the ledger. at_once: see `CauseWorth`."""

    cause: Cause
    bar: int
    symbol: str
    at_once: float
    evidence: str


@dataclass(frozen=True, eq=False)
class Attribution:
    """The difference of the final equities, session minus backtest, by cause.

    rounding: the remainder after all causes. backtest: its ledger, over corrected bars if there are any. rows: the
    session's ledger, one row per bar.
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
    """Run the session's models again, without and with the causes."""
    rows = rows_of(record, backtest)
    is_corrected = backtest.corrected is not None
    pure = backtest.run(corrected=is_corrected)
    if same_bits(pure, rows):
        return Attribution(pure, rows)
    known = deviations_of(record, backtest, rows)
    explained = _Walk(backtest, rows, known).explained()
    return _chain(backtest, rows, pure, explained, is_corrected=is_corrected)


class _Explained(NamedTuple):
    """All deviations. unexplained: steps without a cause. at_decision: whether orders are sized at their decision."""

    deviations: Sequence[Deviation]
    at_decision: bool = False
    unexplained: Sequence[DivergentBar] = ()

    def realized(self, backtest: SessionBacktest, causes: Sequence[Cause]) -> RealizedFills:
        """The realized fills of these causes only; of several quantities for one order, the last cause's counts. Bars
        are counted as in environments."""
        realized = backtest.nothing_realized()
        self.apply(realized, backtest.offset, causes)
        return realized

    def as_recorded(self) -> "_Explained":
        """The same with the quantities of the records, for the account of the session itself."""
        return self._replace(
            deviations=[each if each.adjusts else each._replace(base=np.nan) for each in self.deviations]
        )

    def apply(self, realized: RealizedFills, offset: int, causes: Sequence[Cause]) -> None:
        """Write the deviations of these causes into `realized`. offset: bars of environments before the session."""
        for each in sorted(self.deviations, key=lambda each: CAUSES.index(each.cause)):
            if each.cause not in causes:
                continue
            bar = each.bar + offset
            assets = slice(None) if each.asset is None else each.asset
            if each.adjusts:
                _adjust(each, realized, bar)
                continue
            if each.exit:
                _exit(each, realized, bar)
                continue
            if each.cause == "margin_call":
                realized.uncalled[bar] = True
                continue
            if not np.isnan(each.quantity):
                _change(each, realized.shares, realized.quantities, bar)
            elif each.closes:
                realized.closing[bar] = True
            elif each.cause == "missed_bar":
                realized.skipped[bar] = True
            elif each.cause in NOT_FILLED:
                realized.blocked[bar, assets] = True
            if each.cause == "costs" and each.asset is None:
                realized.charges[bar] += each.value
            elif each.cause == "costs":
                realized.cost_rates[bar, assets] = each.value
            elif not np.isnan(each.value):
                realized.prices[bar, assets] = each.value


def _adjust(each: Deviation, realized: RealizedFills, bar: int) -> None:
    if each.asset is None:
        realized.charges[bar] += each.value
        return
    share, more = each.relative(each.base + each.value)
    realized.kept[bar, each.asset] *= share
    realized.added[bar, each.asset] = share * realized.added[bar, each.asset] + more


def _exit(each: Deviation, realized: RealizedFills, bar: int) -> None:
    if each.cause == "costs":
        realized.exit_cost_rates[bar, each.asset] = each.value
        return
    _change(each, realized.exit_shares, realized.exits, bar)
    if not np.isnan(each.value):
        realized.exit_prices[bar, each.asset] = each.value


def _change(each: Deviation, shares: FloatArray, quantities: FloatArray, bar: int) -> None:
    """Change the quantity that earlier causes left, which is `shares` of the backtest's own fill and `quantities`."""
    share, more = each.relative(each.quantity)
    before = quantities[bar, each.asset]
    has_own = np.isnan(before)
    shares[bar, each.asset] = share * (1.0 if has_own else shares[bar, each.asset])
    quantities[bar, each.asset] = more if has_own else share * before + more


class _Walk:
    """Walks through the session and checks that one step from each row, with all causes, leads to the next row.

    If it does not, the row is unexplained. The walk also finds orders of another quantity than the backtest's: because
    the session sized them before the fill, because the broker's steps rounded them, or because other orders of their
    bar were not filled.
    """

    def __init__(self, backtest: SessionBacktest, rows: Ledger, known: Sequence[Deviation]) -> None:
        self._backtest, self._rows, self._known = backtest, rows, known
        self._symbols = backtest.record.market.symbols
        self._positions, self._filled = per_symbol(rows, "position"), per_symbol(rows, "filled")
        recorded = RecordedOrders(backtest.record, backtest)
        self._orders, self._exits = recorded.orders, recorded.exits
        self._prices = limit_prices(backtest.record, recorded)
        self._assumed = AssumedFills(backtest.record, backtest)
        self._exited = per_symbol(rows, "exited") if any(name.startswith("exited_") for name in rows) else None
        self._sharing: dict[int, Cause] = {}  # by bar: why its other orders may have another quantity
        self._priced: dict[tuple[int, int | None], Cause] = {}  # fills whose price decided their quantity
        for each in known:
            if each.cause in {"delay", "fill_price"}:
                self._priced[each.bar, each.asset] = each.cause
            changes = each.cause == "adjusted" or each.cause in NOT_FILLED or not np.isnan(each.quantity)
            if each.cause != "missed_bar" and changes:
                self._sharing.setdefault(each.bar, each.cause)
        for k in np.flatnonzero(backtest.record.flows_at(rows["time"])[1:]).tolist():
            self._sharing.setdefault(k, "adjusted")  # sized with the money that came
        self._found: list[Deviation] = []
        self._realized = _Explained(known).realized(backtest, CAUSES)
        self._at_decision = any(each.cause == "sized_before_fill" for each in known)
        self._own: dict[tuple[int, int, bool], float] = {}  # by bar, asset and exit: what the backtest fills
        self._envs: dict[int, ReplayEnv] = {}
        self._entries: list[float] | None = None
        self._unexplained: list[DivergentBar] = []

    def explained(self) -> _Explained:
        self._backtest.run(self._realized, at_decision=self._at_decision, lead=self._lead, watch=self._watch)
        return _Explained(self._with_bases(), self._at_decision, self._unexplained)

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
        # A position that the broker does not exit may lack margin at the close.
        for look in (self._other_quantities, self._no_margin_call, self._other_exits, self._no_margin_call):
            if found := look(k, env, action, account):
                self._found += found
                _Explained(found).apply(self._realized, self._backtest.offset, CAUSES)
                trial.stand_where(env)
                account = trial.try_step(action)
        self._entries = account.entries.copy()
        self._compare(k, account)
        self._note_own_fills(k, env, trial, action)

    def _note_own_fills(self, k: int, env: ReplayEnv, trial: ReplayEnv, action: Any) -> None:
        """Note what the backtest fills itself at bar k, where the broker's quantities are others."""
        bar = k + self._backtest.offset
        for is_exit, quantities in ((False, self._realized.quantities), (True, self._realized.exits)):
            before = quantities[bar].copy()
            changed = np.flatnonzero(~np.isnan(before)).tolist()
            if not changed:
                continue
            quantities[bar] = np.nan
            trial.stand_where(env)
            account = trial.try_step(action)
            quantities[bar] = before
            own = account.exited if is_exit else account.filled
            self._own |= {(k, a, is_exit): own[a] - (account.called[a] if is_exit else 0.0) for a in changed}

    def _with_bases(self) -> list[Deviation]:
        """The deviations, with the quantities that the earlier causes of their bar leave."""
        found, bases = list[Deviation](), dict(self._own)
        for each in sorted([*self._known, *self._found], key=lambda each: CAUSES.index(each.cause)):
            if each.asset is None or np.isnan(each.quantity):
                found.append(each)
                continue
            place = each.bar, each.asset, each.exit
            found.append(each._replace(base=bases.get(place, np.nan)))
            bases[place] = each.quantity
        return found

    def _other_quantities(self, k: int, env: ReplayEnv, action: Any, account: ReplayAccount) -> list[Deviation]:
        """Why quantities of bar k differ from those of `account`, as far as the records tell."""
        filled = account.filled
        others = [a for a, n in enumerate(filled) if not _is_same(float(self._filled[k + 1, a]), n)]
        sized = env.sized_at_close(action) if others and action is not None and not self._sizes_at_fill else None
        found = list[Deviation]()
        for a in others:
            order, quantity = self._orders.get(Place(k, a)), float(self._filled[k + 1, a])
            ordered, price = 0.0 if order is None else order.quantity, self._prices.get(Place(k, a), np.nan)
            rounded_by = max(abs(quantity - ordered), 0.0 if sized is None else abs(ordered - sized[a]))
            if sized is not None and rounded_by < self._largest_step(k, a):
                if not _is_same(sized[a], filled[a]):
                    evidence = f"sized to {sized[a]:g} with the cash at the close"
                    found.append(Deviation("sized_before_fill", k, a, evidence, price, quantity=sized[a]))
                if not _is_same(quantity, sized[a]):
                    evidence = f"{sized[a]:g} rounded to {quantity:g}"
                    found.append(Deviation("rounded", k, a, evidence, price, quantity=quantity))
            elif (k, a) in self._priced and self._sizes_at_fill:
                found.append(Deviation(self._priced[k, a], k, a, "sized at its price", quantity=quantity))
            elif k in self._sharing:
                evidence = "another quantity, because other orders of its bar were not filled as assumed"
                found.append(Deviation(self._sharing[k], k, a, evidence, price, quantity=quantity))
            elif order is not None and not quantity:
                found.append(Deviation("partial_fill", k, a, "nothing of it was filled", quantity=0.0))
        return found

    def _no_margin_call(self, k: int, env: ReplayEnv, action: Any, account: ReplayAccount) -> list[Deviation]:
        """A margin call of the backtest at the close of bar k + 1 that the broker did not make."""
        called = np.flatnonzero(account.called)
        if not called.size or self._exited is None or self._exited[k + 1, called].any():
            return []
        evidence = "below the maintenance margin, but the broker closed nothing"
        return [Deviation("margin_call", k, a, evidence) for a in called.tolist()]

    def _other_exits(self, k: int, env: ReplayEnv, action: Any, account: ReplayAccount) -> list[Deviation]:
        """Exits within bar k that the broker made and `account` did not, the other way round, or with other money."""
        if self._exited is None or any(account.called):
            return []
        found = list[Deviation]()
        for a, (quantity, price) in enumerate(zip(account.exited, account.exit_prices, strict=True)):
            own = self._exits.get(Place(k, a))
            if own is None:
                if quantity and not self._exited[k + 1, a] and not self._sizes_at_fill:
                    found.append(
                        Deviation("lapsed", k, a, "its stop or target was not filled", quantity=0.0, exit=True)
                    )
                continue
            if not (_is_same(own.quantity, quantity) and _is_same(own.price, price)):
                evidence = f"closed by the broker at {own.price:.10g}"
                found.append(Deviation("fill_price", k, a, evidence, own.price, quantity=own.quantity, exit=True))
            costs, traded = self._assumed.costs(k, a, own.quantity, own.price), abs(own.quantity) * own.price
            if traded and not _is_same(own.costs, costs):
                evidence = f"costs {own.costs:.6g}, assumed {costs:.6g}"
                found.append(Deviation("costs", k, a, evidence, own.costs / traded, exit=True))
        return found

    def _largest_step(self, k: int, a: int) -> float:
        """The largest rounding of an order of bar k.

        Before a split the session rounded to other shares and lots, and perhaps to less than its smallest order.
        """
        units, rules = self._backtest.record.units, self._backtest.record.rules
        unit = 1.0 if units is None else float(units[self._backtest.first + k, a])
        if unit == 1.0:
            return _LARGEST_STEP
        return max(_LARGEST_STEP, rules.lot_size) * unit + rules.min_order / self._assumed.close(k, a)

    @property
    def _sizes_at_fill(self) -> bool:
        return self._backtest.record.sizes_at_fill

    def _compare(self, k: int, account: ReplayAccount) -> None:
        rows = self._rows
        scale = _EXPLAINED * max(abs(float(rows["equity"][k])), 1e-9)
        off = np.abs(np.array(account.holdings) - self._positions[k + 1]) * np.array(account.closes) > scale
        if not off.any() and abs(account.cash - float(rows["cash"][k + 1])) <= scale:
            return
        symbols = [self._symbols[a] for a in np.flatnonzero(off)] or [""]
        money = float(rows["equity"][k + 1]) - account.equity
        for symbol in symbols:
            evidence = "the quantity differs from the backtest's" if symbol else "the cash differs from the backtest's"
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
        sized, was_sized = (explained.at_decision and "sized_before_fill" in causes for causes in (on, before))
        probe = _Probe(backtest, explained.realized(backtest, before), own, at_decision=was_sized)
        whole = explained.as_recorded() if on == present else explained
        ledger = backtest.run(whole.realized(backtest, on), at_decision=sized, watch=probe)
        probe.finish()
        if not probe.worth and _end(ledger) != equity:  # only later bars show it
            probe.count_all()
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
    """Watches a backtest of the chain, and repeats each step at the cause's bars without the cause.

    worth: by bar and asset, for those whose fill, choice or gain is another without the cause.
    """

    def __init__(
        self, backtest: SessionBacktest, before: RealizedFills, deviations: Sequence[Deviation], *, at_decision: bool
    ) -> None:
        self._backtest, self._before, self._at_decision = backtest, before, at_decision
        self._happenings: dict[int, list[Deviation]] = {}
        for each in deviations:
            self._happenings.setdefault(each.bar, []).append(each)
        self._envs: dict[int, ReplayEnv] = {}
        self._open: tuple[int, ReplayEnv, FloatArray, list[tuple[float, float, int]], list[float]] | None = None
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
        if action is None and not isinstance(model.act, ActsInEpisodes):  # a call would change a recurrent policy
            action = model.act(env.observation)
        held = list(env.account.holdings)
        account = other.try_step(action)
        self._open = k, env, account.gains(other.bar - 1), other.outcome, held

    def finish(self) -> None:
        """Compare the last step with the one without the cause."""
        if self._open is None:
            return
        k, env, without, outcome, held = self._open
        self._open = None
        gained = env.account.gains(env.bar - 1) - without
        own = self._happenings[k]
        named = {each.asset for each in own}
        money = sum(each.value for each in own if each.cause in {"costs", "adjusted"} and each.asset is None)
        for a in range(len(gained)):
            if (a in named or None in named) and (gained[a] or env.outcome[a] != outcome[a]):
                self.worth[k, a] = float(gained[a])
        for each in own:
            if each.adjusts and each.asset is not None:
                a, price = each.asset, env.account.closes[each.asset]
                share, more = each.relative(each.base + each.value)
                came, held[a] = (share - 1.0) * held[a] + more, share * held[a] + more
                self.worth[k, a] = self.worth.get((k, a), 0.0) + came * price
        if money:  # of the account, not of a symbol: shown with the first symbol
            self.worth[k, 0] = self.worth.get((k, 0), 0.0) - money

    def count_all(self) -> None:
        """Count every recorded bar and asset of the cause, without an effect at once."""
        n_assets = len(self._backtest.record.market.symbols)
        for k, own in self._happenings.items():
            for each in own:
                for a in range(n_assets) if each.asset is None else [each.asset]:
                    self.worth.setdefault((k, a), 0.0)

    def evidence(self, k: int, asset: int) -> str:
        return "; ".join(each.evidence for each in self._happenings[k] if each.asset in {None, asset} and each.evidence)


def _is_same(first: float, second: float) -> bool:
    return abs(first - second) <= _EXPLAINED * max(abs(first), abs(second))


def _end(ledger: Ledger) -> float:
    return float(ledger["equity"][-1])
