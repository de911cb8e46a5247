"""The costs of fills, assumed and paid, and the settings for the next training that follow from them.

All rates are in basis points of the value traded at the assumed price, so that money and rates add up. Positive: paid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.live.reconciliation.backtest import SessionBacktest
from ml_pipeline.live.reconciliation.orders import AssumedFills, RecordedOrders
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.trading.evaluation.uncertainty import Interval, bootstrap_interval
from ml_pipeline.trading.market.data import FloatArray

Side = Literal["buy", "sell"]
FEWEST_FILLS = 30
"""Fewest orders on a side to change a setting."""
_LARGEST_BPS = 1_000.0


class OrderFilled(NamedTuple):
    """One order that was filled, fully or partly. bar: of its decision, counted from the session's first.

    assumed_price: of the backtest. decided_close: of the bar of its decision. assumed_costs: for the actual quantity
    and price. unfilled: signed quantity that was not filled. next_close: of the bar of the fill. delay_s: from the
    close of the decision to the last fill. after_open_s: from the backtest's fill to the last fill.
    """

    bar: int
    symbol: str
    side: Side
    quantity: float
    price: float
    assumed_price: float
    decided_close: float
    next_close: float
    costs: float
    assumed_costs: float
    half_spread: float
    unfilled: float
    delay_s: float
    after_open_s: float

    @property
    def sign(self) -> int:
        return 1 if self.quantity > 0 else -1

    @property
    def value(self) -> float:
        """Value at the assumed price."""
        return abs(self.quantity) * self.assumed_price

    @property
    def slippage(self) -> float:
        """Money lost because the fill's price differs from the assumed one."""
        return self.quantity * (self.price - self.assumed_price)

    @property
    def shortfall(self) -> float:
        """Money lost compared with a fill of the whole order at the decision's close, without costs."""
        filled = self.quantity * (self.price - self.decided_close) + self.costs
        return filled + self.unfilled * (self.next_close - self.decided_close)


class SideCosts(NamedTuple):
    """The costs of one symbol (None: all) and side. Rates in basis points.

    slippage: of the price relative to the assumed one, with a bootstrap interval over orders. charged: what the broker
    charged as costs. assumed: all costs of the backtest. shortfall: relative to the decision's close.
    """

    symbol: str | None
    side: Side
    fills: int
    traded: float
    slippage: float
    slippage_interval: Interval
    charged: float
    assumed: float
    shortfall: float

    @property
    def realized(self) -> float:
        """All costs that were paid."""
        return self.slippage + self.charged


@dataclass(frozen=True)
class RealizedCosts:
    """Costs of a session's orders. settings: for the next training. sentences: remarks on them.

    delay_s: (median, 95th percentile) of the time from a decision's close to its fill; NaN without fills.
    shortfall: money.
    """

    sides: Sequence[SideCosts]
    settings: dict[str, float]
    sentences: tuple[str, ...]
    delay_s: tuple[float, float]
    shortfall: float
    n_fills: int


def filled_orders(record: RecordedSession, backtest: SessionBacktest) -> list[OrderFilled]:
    """Every filled order, in order of bars."""
    orders, assumed = RecordedOrders(record, backtest), AssumedFills(record, backtest)
    found = []
    for place, fills in orders.fills.items():
        if place.bar >= backtest.n_bars - 1 or not fills.quantity:
            continue
        order = orders.orders[place]
        ordered = order.quantity if order.quantity * fills.quantity > 0 else fills.quantity
        update = orders.updates.get(order.client_order_id)
        is_whole = record.sizes_at_fill or update is None or update.status == "filled"
        found.append(
            OrderFilled(
                bar=place.bar,
                symbol=order.symbol,
                side="buy" if fills.quantity > 0 else "sell",
                quantity=fills.quantity,
                price=fills.price,
                assumed_price=assumed.price(*place, fills.quantity, closing=order.closing),
                decided_close=assumed.close(*place),
                next_close=assumed.close(place.bar + 1, place.asset),
                costs=fills.costs,
                assumed_costs=assumed.costs(*place, fills.quantity, fills.price),
                half_spread=assumed.half_spread(*place),
                unfilled=0.0 if is_whole else ordered - fills.quantity,
                delay_s=assumed.since_decision_s(place.bar, fills.time),
                after_open_s=assumed.delay_s(place.bar, fills.time),
            )
        )
    return sorted(found, key=lambda each: (each.bar, each.symbol))


def realized_costs(record: RecordedSession, filled: Sequence[OrderFilled]) -> RealizedCosts:
    """The costs of filled orders, per symbol and side, and as settings."""
    symbols = sorted({each.symbol for each in filled})
    groups: list[str | None] = [*symbols, *([None] if len(symbols) != 1 else [])]
    sides = []
    for symbol in groups:
        for side in ("buy", "sell"):
            own = [each for each in filled if each.side == side and symbol in {None, each.symbol}]
            if own:
                sides.append(_side(symbol, side, own))
    settings, sentences = _settings(record, filled)
    delays = np.array([each.delay_s for each in filled])
    delay_s = (float(np.median(delays)), float(np.quantile(delays, 0.95))) if len(delays) else (np.nan, np.nan)
    return RealizedCosts(sides, settings, sentences, delay_s, sum(each.shortfall for each in filled), len(filled))


def _side(symbol: str | None, side: Side, own: Sequence[OrderFilled]) -> SideCosts:
    table = np.array([[each.slippage, each.value] for each in own])
    traded = float(table[:, 1].sum())
    interval = bootstrap_interval(table, _rates, mean_block=1.0)
    return SideCosts(
        symbol,
        side,
        len(own),
        traded,
        float(_rates(table[None])[0]),
        interval,
        sum(each.costs for each in own) / traded * 1e4,
        sum(each.assumed_costs for each in own) / traded * 1e4,
        sum(each.shortfall for each in own) / traded * 1e4,
    )


def _rates(tables: FloatArray) -> FloatArray:
    """Money divided by value, the two columns of tables (m, n, 2), in basis points: (m,)."""
    return np.asarray(tables[..., 0].sum(axis=1) / tables[..., 1].sum(axis=1) * 1e4)


def _settings(record: RecordedSession, filled: Sequence[OrderFilled]) -> tuple[dict[str, float], tuple[str, ...]]:
    """fee_bps, sell_fee_bps and slippage_bps as paid, or as assumed if there are too few fills."""
    rules = record.rules
    sentences = []
    sell_fee = rules.fee_bps if rules.sell_fee_bps is None else rules.sell_fee_bps
    settings = {"fee_bps": rules.fee_bps, "sell_fee_bps": sell_fee, "slippage_bps": rules.slippage_bps}
    for name, side, what in (("fee_bps", "buy", "buys"), ("sell_fee_bps", "sell", "sales")):
        own = [each for each in filled if each.side == side]
        if len(own) < FEWEST_FILLS:
            sentences.append(
                f"{name} is the assumed value: {counted(len(own), 'order')} ({what}) filled, "
                f"at least {FEWEST_FILLS} needed."
            )
            continue
        value = sum(each.value for each in own)
        charged = sum(each.costs - rules.fixed_fee for each in own)
        if record.slippage_in_costs:
            charged -= sum(abs(e.quantity) * e.price * (rules.slippage_bps / 1e4 + e.half_spread) for e in own)
        settings[name] = _possible(charged / value * 1e4, name, sentences)
    if len(filled) < FEWEST_FILLS:
        sentences.append(
            f"slippage_bps is the assumed value: {counted(len(filled), 'order')} filled, at least "
            f"{FEWEST_FILLS} needed."
        )
        return settings, tuple(sentences)
    value = sum(each.value for each in filled)
    slipped = sum(each.slippage for each in filled)
    if record.slippage_in_costs:
        slipped += sum(abs(each.quantity) * each.price for each in filled) * rules.slippage_bps / 1e4
    else:  # with quotes, the backtest also charges half the spread
        slipped -= sum(each.value * each.half_spread for each in filled)
    settings["slippage_bps"] = _possible(slipped / value * 1e4, "slippage_bps", sentences)
    return settings, tuple(sentences)


def _possible(bps: float, name: str, sentences: list[str]) -> float:
    if bps < -0.005:
        sentences.append(f"{name} was {bps:.2f}, a gain; it is written as 0, because the setting cannot be negative.")
    return round(min(max(bps, 0.0), _LARGEST_BPS), 4)


def write_realized_costs(path: Path, record: RecordedSession, costs: RealizedCosts) -> None:
    """Write the settings as YAML that `ml-pipeline train --config` reads."""
    lines = [
        f"# Costs that {record.name} paid in {counted(costs.n_fills, 'filled order')}, in basis points.",
        *(f"# {sentence}" for sentence in costs.sentences),
        *(f"{name}: {value!r}" for name, value in costs.settings.items()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
