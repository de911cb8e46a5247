"""All guards of a session: what they allow on each bar, and which orders may be sent.

If a guard raises an error, it refuses, with a message. An order that closes or reduces a position passes every limit on
size and number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.live.brokers.broker import OrderRequest, TradingSession
from ml_pipeline.live.risk.account_guards import (
    FeatureRange,
    GrossExposure,
    ImpossibleAction,
    KillFile,
    LargestPosition,
    Losses,
    LossLimits,
    OrderRate,
    OrderSize,
    closes_position,
    impossible_order,
)
from ml_pipeline.live.risk.bar_guards import (
    ClosedMarket,
    CrossedQuotes,
    HalfDay,
    Halts,
    ImpossiblePrices,
    PriceJump,
    StaleData,
    WrongClock,
    usual_length_s,
    without,
)
from ml_pipeline.live.risk.config import GuardConfig
from ml_pipeline.live.risk.guard import (
    AccountNow,
    Action,
    DecisionMade,
    Exposure,
    Guard,
    Moment,
    Refusal,
    Verdict,
    by_symbol,
    strongest,
    together,
)
from ml_pipeline.trading.market.bar_set import BarSet
from ml_pipeline.trading.market.timeframes import Timing


class AccountBooks(Protocol):
    """The part of the books that guards read. holdings: signed quantities, by symbol or in the order of the symbols."""

    @property
    def equity(self) -> float: ...

    @property
    def holdings(self) -> Any: ...


class Guards:
    """Call on each bar, in this order: `on_bars`, `on_account`, `on_decision`, `on_orders`.

    A verdict on a bar applies to its orders: after "hold", only orders that close whole positions are allowed.
    """

    def __init__(
        self, config: GuardConfig, symbols: Sequence[str], *, timing: Timing, sessions: Sequence[TradingSession] = ()
    ) -> None:
        """timing: of the bars; its clock defines days. sessions: recent market sessions, for example of the last month,
        which define the usual length.
        """
        self._symbols = tuple(symbols)
        self._known = frozenset(symbols)
        self._timing = timing
        self._guards = _made(config, self._symbols, timing, sessions)
        self._session: TradingSession | None = None
        self._action: Action = "trade"
        self._held_by: Refusal | None = None
        self._blocked: dict[str, Refusal] = {}
        self._sifted: tuple[np.datetime64, Verdict] | None = None

    def sift(self, bars: BarSet) -> BarSet:
        """The bars without impossible prices and quotes, for features and books; `on_bars` reports what was wrong.

        A symbol with an impossible price then has no bar, and one with crossed quotes no quote. Valid bars are returned
        unchanged.
        """
        verdict = together(
            self._asked(guard, lambda guard: guard.on_bars(bars, Moment(bars.closed_at, None)))
            for guard in self._guards
            if isinstance(guard, ImpossiblePrices | CrossedQuotes)
        )
        self._sifted = (bars.time, verdict) if verdict.refusals else None
        return without(bars, verdict.blocked, self._symbols)

    def note_history(self, bars: BarSet) -> None:
        """Learn from a bar without a decision, such as those before the start."""
        for guard in self._guards:
            guard.note_history(bars)

    def on_bars(
        self, bars: BarSet, now: np.datetime64, session: TradingSession | None, *, clock_ahead_s: float = 0.0
    ) -> Verdict:
        """Judge new bars. now: by the broker's clock, which in a replay follows the bars.

        session: the market session of the bars, or the nearest one; None if the market never closes. clock_ahead_s: of
        the clock that closes the bars.
        """
        self._action, self._held_by, self._blocked, self._session = "trade", None, {}, session
        moment = Moment(now, session, clock_ahead_s)
        verdict = self._all(lambda guard: guard.on_bars(bars, moment))
        if self._sifted is None or self._sifted[0] != bars.time:
            return verdict
        sifted = self._sifted[1]
        self._action = strongest([self._action, sifted.action])
        self._block(sifted)
        return together([sifted, verdict])

    def on_account(self, books: AccountBooks, bar_time: np.datetime64) -> Verdict:
        """Judge the account at the close of a bar."""
        return self._all(lambda guard: guard.on_account(AccountNow(books.equity, bar_time, self._day(bar_time))))

    def note_flow(self, amount: float) -> None:
        """Note a deposit (positive) or a withdrawal."""
        for guard in self._guards:
            guard.note_flow(amount)

    def note_split(self, symbol: str, factor: float) -> None:
        """Note that the prices of a symbol are multiplied by this factor from the next bar on."""
        for guard in self._guards:
            guard.note_split(symbol, factor)

    def on_decision(self, decision: DecisionMade) -> Verdict:
        """Judge the policy's decision and its features."""
        return self._all(lambda guard: guard.on_decision(decision))

    def on_orders(
        self, orders: Sequence[OrderRequest], books: AccountBooks, closes: Any, now: np.datetime64
    ) -> tuple[list[OrderRequest], list[Refusal]]:
        """The orders of one decision that may be sent, in their order, and the refusals of the others.

        closes: the last closes, by symbol or in the order of the symbols. Orders that reduce positions are counted
        first; each of the others is judged together with those before it. The returned orders count as sent.
        """
        try:
            account = Exposure(books.equity, by_symbol(self._symbols, books.holdings), by_symbol(self._symbols, closes))
        except Exception as error:
            return [], [_failed("the account", error)] if orders else []
        self._all(lambda guard: guard.before_orders())
        refused: dict[int, Refusal] = {}
        ranks = {i: self._rank(order, account) for i, order in enumerate(orders)}
        for i in sorted(ranks, key=ranks.__getitem__):
            if (refusal := self._judged(orders[i], account, now)) is not None:
                refused[i] = refusal
            else:
                account.take(orders[i])
        allowed = [order for i, order in enumerate(orders) if i not in refused]
        return allowed, [refused[i] for i in sorted(refused)]

    def state(self) -> dict[str, Any]:
        """The state that must survive a restart, as JSON data, by name of the guard."""
        return {guard.name: state for guard in self._guards if (state := guard.state())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`, possibly of other settings. Raises UserError if it is invalid."""
        for guard in self._guards:
            if guard.name in state:
                try:
                    guard.set_state(state[guard.name])
                except (LookupError, TypeError, ValueError) as error:
                    raise UserError(
                        f"The state of the guard {guard.name} in the journal cannot be read "
                        f"({type(error).__name__}: {error}); start a session with another name."
                    ) from error

    def _all(self, ask: Callable[[Guard], Verdict]) -> Verdict:
        verdicts = [self._asked(guard, ask) for guard in self._guards]
        verdict = together(verdicts)
        self._action = strongest([self._action, verdict.action])
        for each in verdicts:
            if each.action != "trade" and self._held_by is None:
                self._held_by = next(iter(each.refusals), None)
        self._block(verdict)
        return verdict

    def _block(self, verdict: Verdict) -> None:
        for refusal in verdict.blocked:
            if refusal.symbol is not None:
                self._blocked.setdefault(refusal.symbol, refusal)

    @staticmethod
    def _asked(guard: Guard, ask: Callable[[Guard], Verdict]) -> Verdict:
        try:
            return ask(guard)
        except Exception as error:
            return Verdict((_failed(guard.name, error),), "hold")

    @staticmethod
    def _rank(order: OrderRequest, account: Exposure) -> int:
        """Orders that reduce positions come first, because they make room for the others."""
        return 0 if order.closing or account.reduces(order) else 1

    def _judged(self, order: OrderRequest, account: Exposure, now: np.datetime64) -> Refusal | None:
        guard: Guard | None = None
        try:
            refusal = impossible_order(order, account, self._known)
            if refusal is None and not closes_position(order, account):
                refusal = self._refused_on_this_bar(order)
                if refusal is None and not account.reduces(order):
                    for guard in self._guards:
                        if (refusal := guard.on_order(order, account, now)) is not None:
                            break
            if refusal is None:
                for guard in self._guards:
                    guard.note_sent(order, now)
        except Exception as error:
            return _failed("an order" if guard is None else guard.name, error)._replace(symbol=order.symbol)
        return refusal

    def _refused_on_this_bar(self, order: OrderRequest) -> Refusal | None:
        if self._action != "trade":
            held = self._held_by or Refusal("held", None, math.nan, math.nan, "Nothing is ordered on this bar.")
            return held._replace(symbol=order.symbol)
        return self._blocked.get(order.symbol)

    def _day(self, bar_time: np.datetime64) -> str:
        """The market's day of a bar: the day of its session, or else of the clock."""
        if self._session is not None:
            return str(self._session.opens.astype("datetime64[D]"))
        opens = self._timing.opens(np.array([bar_time]).astype("datetime64[ns]"))
        return str(np.datetime64(int(self._timing.clock.days(opens)[0][0]), "D"))


def _made(
    config: GuardConfig, symbols: tuple[str, ...], timing: Timing, sessions: Sequence[TradingSession]
) -> list[Guard]:
    """Create the guards from the settings."""
    stale_s = timing.length / 1e9 if config.guard_stale_s is None else config.guard_stale_s
    guards: list[Guard] = [
        ImpossiblePrices(symbols),
        CrossedQuotes(symbols),
        StaleData(stale_s),
        WrongClock(config.guard_clock_s),
        ClosedMarket(timing.length),
        HalfDay(config.guard_half_day, usual_length_s(sessions)),
        Halts(symbols, missing_bars=config.guard_halt_bars),
        ImpossibleAction(),
        FeatureRange(config.guard_features, config.guard_features_beyond),
        Losses(
            LossLimits(config.guard_daily_loss, config.guard_daily_loss_money, config.guard_drawdown),
            on_loss=config.guard_on_loss,
            reset=config.guard_reset,
        ),
    ]
    if config.kill_file is not None:
        guards.append(KillFile(config.kill_file, config.on_kill_file))
    if config.guard_price_jump is not None or config.guard_price_jump_deviations is not None:
        jump, deviations = config.guard_price_jump, config.guard_price_jump_deviations
        guards.append(PriceJump(symbols, fraction=jump, deviations=deviations))
    if config.guard_order is not None or config.guard_order_money is not None:
        guards.append(OrderSize(fraction=config.guard_order, money=config.guard_order_money))
    if config.guard_position is not None or config.guard_position_money is not None:
        guards.append(LargestPosition(fraction=config.guard_position, money=config.guard_position_money))
    if config.guard_gross is not None:
        guards.append(GrossExposure(config.guard_gross))
    if config.guard_orders_per_minute is not None:
        guards.append(OrderRate(config.guard_orders_per_minute))
    return guards


def _failed(guard: str, error: Exception) -> Refusal:
    what = in_one_line(f"{type(error).__name__}: {error}")
    sentence = f"Nothing is ordered because the guard {guard} failed: {what}"
    return Refusal(guard, None, math.nan, math.nan, sentence)
