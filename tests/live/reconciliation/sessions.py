"""Sessions for tests: an account that is stepped bar by bar with known faults, and the record that it leaves.

It shares the kernel's arithmetic of orders with the backtest, and nothing of `live.reconciliation`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.live.brokers.broker import Fill, OrderUpdate
from ml_pipeline.live.reconciliation.recorded import (
    ModelInTurn,
    PaidCharge,
    RecordedSession,
    RefusedOrder,
    SentOrder,
    SessionEvent,
)
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.ledger import LedgerRecorder, LedgerRow
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.actions import ActionReader
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.market.synthetic import synthetic_market

FEATURES = ("log_return_1", "ema_distance_5")
WARM_UP = 12


class Fault(NamedTuple):
    """What goes wrong with the order of an asset that is decided at bar k of the session; asset None: with all.

    value: of "partial": the part that is filled; of "price" and "delay": the price in terms of the assumed one; of
    "costs": the rate in basis points on top; of "charge": money.
    """

    kind: str
    bar: int
    asset: int | None = 0
    value: float = 0.0


def restless(observation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights that change with every bar, and with what is held."""
    n_assets = 1 if len(observation) < 2 * len(FEATURES) + 2 else len(observation) // (len(FEATURES) + 1)
    features = observation[: len(FEATURES) * n_assets].reshape(n_assets, -1)
    held = observation[-n_assets:]
    return np.clip(np.tanh(2 * features.sum(axis=1)) / n_assets * 0.9 - 0.1 * held, -1, 1).astype(np.float32)


def choosing(observation: NDArray[np.float32]) -> int:
    """Short, flat or long."""
    trend = float(observation[:-1].sum())
    return 2 if trend > 0.4 else 0 if trend < -0.4 else 1


def small_market(n_bars: int = 80, n_symbols: int = 2, seed: int = 3) -> MarketData:
    return synthetic_market(seed=seed, n_bars=n_bars, n_symbols=n_symbols)


def model_of(market: MarketData, rules: TradingRules, act: Any = restless, first: int = WARM_UP) -> ModelInTurn:
    table = compute_features(market, FEATURES)
    scaler = FeatureScaler.fit(table.values[table.first_bar :])
    return ModelInTurn(market.times[first], act, FEATURES, scaler, 1, rules)


RULES = TradingRules(action_mode="target_weights", slippage_bps=2.0, borrow_bps_per_year=300.0)


def trade(
    market: MarketData,
    model: ModelInTurn,
    faults: Sequence[Fault] = (),
    *,
    first: int = WARM_UP,
    sized_at_decision: bool = False,
) -> RecordedSession:
    """A session over the bars from `first` on, in which the broker and the loop do what `faults` say."""
    account = _Account(market, model, first, sized_at_decision=sized_at_decision)
    for t in range(first, market.n_bars - 1):
        account.trade_bar(t, [fault for fault in faults if fault.bar == t - first])
    return account.record


class _Decided(NamedTuple):
    weights: Sequence[float]
    trades: Sequence[bool]
    closing: bool


class _Account:
    """What a session holds from bar to bar, and the record that it leaves."""

    def __init__(self, market: MarketData, model: ModelInTurn, first: int, *, sized_at_decision: bool) -> None:
        self._market, self._model, self._first = market, model, first
        self._terms = model.rules.terms(market.periods_per_year)
        self._features = model.scaler(compute_features(market, model.features).values)
        self._reader = ActionReader(model.rules, market.symbols)
        self._n_assets = len(market.symbols)
        self._none = [0.0] * self._n_assets
        self._cash = self._equity = model.rules.initial_cash
        self._holdings = [0.0] * self._n_assets
        self._recorder = LedgerRecorder(market.symbols)
        closes = market.close[first].tolist()
        self._recorder.append(
            LedgerRow(market.times[first], self._cash, self._cash, 0.0, closes, self._none, self._none, closes)
        )
        self._record = RecordedSession(
            market=market,
            ledger=self._recorder.ledger(),
            models=[model],
            orders=[],
            updates=[],
            fills=[],
            charges=[],
            refusals=[],
            events=[],
            sizes_at_fill=not sized_at_decision,
        )

    @property
    def record(self) -> RecordedSession:
        return replace(self._record, ledger=self._recorder.ledger())

    def trade_bar(self, t: int, faults: Sequence[Fault]) -> None:
        """Decide at the close of bar t, fill at the open of the next, and close that one."""
        market, record = self._market, self._record
        decided = self._decide(t, faults)
        met = {(fault.kind, fault.asset): fault.value for fault in faults}
        opens = market.open[t + 1].tolist()
        prices = [opens[a] * (met.get(("price", a)) or met.get(("delay", a)) or 1.0) for a in range(self._n_assets)]
        filled = self._sized(decided, market.close[t].tolist(), prices)
        _tell(faults, market.times[t], market.symbols, record.refusals, record.events)
        costs, money = 0.0, self._cash
        for a in range(self._n_assets):
            self._send_in_vain(t, a, decided, faults)
            if filled[a]:
                fill = self._fill(t, a, decided, met, ordered=filled[a], price=prices[a])
                filled[a] = fill.quantity
                self._holdings[a] += fill.quantity
                money -= fill.quantity * fill.price + fill.costs
                costs += fill.costs
        self._close_bar(t + 1, money, costs, filled, prices, charge=met.get(("charge", None), 0.0))

    def _decide(self, t: int, faults: Sequence[Fault]) -> _Decided:
        kinds = {fault.kind for fault in faults}
        if kinds & {"missed", "late"}:
            return _Decided(self._none, [False] * self._n_assets, "flatten" in kinds)
        if "flatten" in kinds:
            return _Decided(*self._reader.close([True] * self._n_assets), closing=True)
        closes = self._market.close[t].tolist()
        held = [h * c / self._equity for h, c in zip(self._holdings, closes, strict=True)]
        observation = np.append(self._features[t], np.array(held, np.float32)).astype(np.float32)
        can = [not stop for stop in _stopped(faults, self._n_assets)]
        return _Decided(*self._reader.read(self._model.act(observation), can), closing=False)

    def _sized(self, decided: _Decided, closes: list[float], prices: list[float]) -> list[float]:
        """The quantities that the cash pays for."""
        terms = self._terms.closing() if decided.closing else self._terms
        sizing = prices if self._record.sizes_at_fill else closes
        ordered, filled = [0.0] * self._n_assets, [0.0] * self._n_assets
        worth = PLAIN.size_orders(decided.weights, decided.trades, self._cash, self._holdings, sizing, terms, ordered)
        PLAIN.fill_orders(ordered, self._cash, worth, prices, self._none, terms, filled)
        return filled

    def _send_in_vain(self, t: int, a: int, decided: _Decided, faults: Sequence[Fault]) -> None:
        """The orders of an asset that are rejected, or lapse."""
        symbol, time = self._market.symbols[a], self._market.times[t]
        for fault in faults:
            if fault.kind in {"rejected", "lapsed"} and fault.asset in {a, None}:
                status: Any = "rejected" if fault.kind == "rejected" else "canceled"
                order_id = self._order_id(t, symbol)
                self._record.orders.append(SentOrder(order_id, time, symbol, 1.0, decided.weights[a]))
                self._record.updates.append(OrderUpdate(order_id, symbol, status, 1.0, 0.0, time, fault.kind))

    def _fill(
        self, t: int, a: int, decided: _Decided, met: Mapping[Any, float], *, ordered: float, price: float
    ) -> Fill:
        """Record the order of an asset and its fill, in whole or in part."""
        market, terms, record = self._market, self._terms, self._record
        symbol = market.symbols[a]
        order_id = self._order_id(t, symbol)
        quantity = ordered * met.get(("partial", a), 1.0)
        rate = terms.buy_rate if quantity > 0 else terms.sell_rate
        costs = abs(quantity) * price * (rate + met.get(("costs", a), 0.0) / 10_000) + terms.fixed_fee
        at = market.timing.opens(market.times[t + 1 : t + 2])[0]
        at = at + np.timedelta64(30 if ("delay", a) in met else 0, "s")
        status: Any = "canceled" if quantity != ordered else "filled"
        fill = Fill(f"f{order_id}", order_id, symbol, quantity, price, costs, at)
        record.orders.append(SentOrder(order_id, market.times[t], symbol, ordered, decided.weights[a], decided.closing))
        record.updates.append(OrderUpdate(order_id, symbol, status, ordered, quantity, at))
        record.fills.append(fill)
        return fill

    def _close_bar(
        self, t: int, money: float, costs: float, filled: list[float], prices: list[float], *, charge: float
    ) -> None:
        """Pay for what is borrowed, and write the row of bar t."""
        time, closes = self._market.times[t], self._market.close[t].tolist()
        values = [h * c for h, c in zip(self._holdings, closes, strict=True)]
        fee = sum(max(-value * self._terms.borrow_rate, 0.0) for value in values)
        fee += charge
        if fee:
            self._record.charges.append(PaidCharge(time, fee, "borrowing"))
        self._cash = money - fee
        self._equity = self._cash + sum(values)
        self._recorder.append(
            LedgerRow(time, self._equity, self._cash, costs + fee, closes, self._holdings, filled, prices)
        )

    def _order_id(self, t: int, symbol: str) -> str:
        return f"{t - self._first}-{symbol}"


_STOPPING = {"rejected", "lapsed", "refused", "broker_away"}


def _stopped(faults: Sequence[Fault], n_assets: int) -> list[bool]:
    return [any(f.kind in _STOPPING and f.asset in {a, None} for f in faults) for a in range(n_assets)]


def _tell(faults: Sequence[Fault], time: Any, symbols: Sequence[str], refusals: list, events: list) -> None:  # type: ignore[type-arg]
    for fault in faults:
        if fault.kind == "refused":
            symbol = None if fault.asset is None else symbols[fault.asset]
            refusals.append(RefusedOrder(time, symbol, "max_order", "max_order refused it"))
        if fault.kind in {"missed", "late", "broker_away", "flatten"}:
            events.append(SessionEvent(time, fault.kind, f"{fault.kind} here"))  # type: ignore[arg-type]


def with_rules(model: ModelInTurn, **changes: Any) -> ModelInTurn:
    return replace(model, rules=replace(model.rules, **changes))


def worths(causes: Sequence[Any]) -> Mapping[str, float]:
    return {each.cause: each.worth for each in causes}
