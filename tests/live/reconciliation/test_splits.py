"""Splits, mergers and trades by hand, which change an account without an order, are worth what they did."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation, reconcile
from ml_pipeline.live.reconciliation.splits import Booked, unreported_splits
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from tests.live.reconciliation.quantity_broker import SPLIT_AT, Faults, QuantityBroker
from tests.live.reconciliation.test_mixtures import WHOLE_SHORTS, assert_explained
from tests.live.reconciliation.test_reading import MARKET, deploy, write_prices

BARS = [*bar_sets_of(MARKET)]


@pytest.mark.parametrize(
    ("had", "came", "factor"),
    [
        (431.6, 431.6, 0.5),
        (437.0, -394.0, 10.0),  # 43.7 shares: the fraction was paid out
        (-90.0, -45.0, 2 / 3),
        (100.0, -100.0, 1.0),  # nothing is left: no split
        (0.0, 10.0, 1.0),
    ],
)
def test_the_factor_of_a_split_follows_from_the_position(had, came, factor):
    bars, number = list(BARS), 20
    for n in range(number, len(bars)):
        prices = {name: getattr(bars[n], name) * [factor, 1.0] for name in ("open", "high", "low", "close")}
        bars[n] = replace(bars[n], **prices)
    ledger = {"position_SYNTH1": np.full(40, had), "position_SYNTH2": np.zeros(40)}

    factors = unreported_splits([Booked(number + 2, "SYNTH1", came)], bars, MARKET.symbols, ledger, first=5)

    assert factors[:number, 0] == pytest.approx(factor)
    assert (factors[number:, 0] == 1.0).all()
    assert (factors[:, 1] == 1.0).all()


def test_without_a_jump_of_the_price_nothing_is_rescaled():
    ledger = {"position_SYNTH1": np.full(40, 100.0), "position_SYNTH2": np.zeros(40)}
    factors = unreported_splits([Booked(20, "SYNTH1", 100.0)], BARS, MARKET.symbols, ledger, first=5)
    assert (factors == 1.0).all()


class Adjusting(QuantityBroker):
    """It changes the first position once, at `SPLIT_AT`, with these quantities for what was held, and cash."""

    kind, part = "merger", -1.0

    def market_closed_bar(self, bars: BarSet) -> None:
        super().market_closed_bar(bars)
        held = self._held[self.symbols[0]]
        if bars.time >= SPLIT_AT and held and not self._has_split:
            self._has_split = True
            came = held if self.part > 0 else -held
            self._adjust("a1", self.symbols[0], came, 0.0, self.kind)
            self._adjust("a2", "", Decimal(0), -float(came) * self._closes[self.symbols[0]], self.kind)


class ByHand(Adjusting):
    kind, part = "difference", 1.0


def traded(tmp_path: Path, broker: QuantityBroker) -> Reconciliation:
    prices = write_prices(tmp_path / "prices.csv", MARKET, 45)
    model = deploy(tmp_path / "run", action_mode="target_weights")
    values = {"model": model, "root": tmp_path / "live", "name": "day", "broker": "simulated", "replay": prices}
    result = PaperTrading(paper_trade_config(values), broker=broker).run()
    return reconcile(read_session(result.folder))


@pytest.mark.parametrize("broker_class", [Adjusting, ByHand])
def test_money_for_shares_is_no_deposit(tmp_path, broker_class):
    """Shares go or come at their price, so the account is worth as much as before."""
    found = traded(tmp_path, broker_class(MARKET.symbols, 10_000.0, Faults(), WHOLE_SHORTS))
    assert_explained(found)
    (adjusted,) = [each for each in found.attribution.causes if each.cause == "adjusted"]
    assert abs(adjusted.worth) < 150.0  # of 10,000: the gain of one bar, and the costs of trading back
    assert not found.record.flows
