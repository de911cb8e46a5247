"""Whatever goes wrong together, the causes add up to the difference, and nothing is left unexplained."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.live import recovery
from ml_pipeline.live.brokers.broker import QuantityRules
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.reconciliation.reading import read_session
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation, reconcile
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.trading.market.data import MarketData
from tests.examples import COSTLY, searched
from tests.live.reconciliation.quantity_broker import SPLIT_AT, Faults, QuantityBroker
from tests.live.reconciliation.test_reading import MARKET, deploy, write_prices

N_BARS = 45
MODES = ("discrete", "buy_hold_sell", "target_weights", "trade")
WHOLE_SHORTS = QuantityRules(usual_step=0.001, smallest_order=1.0, whole_shorts=True)


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One model per action mode, and the bars, in `FOLDER`."""
    FOLDER.append(tmp_path_factory.mktemp("mixtures"))
    write_prices(FOLDER[0] / "prices.csv", MARKET, N_BARS)
    write_prices(FOLDER[0] / "split.csv", split_market(), N_BARS)
    for mode in MODES:
        deploy(FOLDER[0] / mode, action_mode=mode)
    yield
    FOLDER.clear()


FOLDER: list[Path] = []


def split_market() -> MarketData:
    """The bars, with the first symbol at half the price and twice the volume from `SPLIT_AT` on."""
    factors = np.ones((MARKET.n_bars, 2))
    factors[MARKET.times >= SPLIT_AT, 0] = 0.5
    prices = {name: getattr(MARKET, name) * factors for name in ("open", "high", "low", "close")}
    return replace(MARKET, **prices, volume=MARKET.volume / factors)


def reconciled(mode: str, broker: Any = None, **changes: Any) -> Reconciliation:
    """The reconciliation of a session of this model. broker: in place of the simulated one."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery.secrets, "token_hex", lambda n: "5e" * n)  # faults are drawn by the IDs of orders
        patch.setattr(PaperTrading, "_report", lambda *_, **__: None)
        values = {"model": FOLDER[0] / mode, "root": Path(root), "name": "day", "broker": "simulated"}
        has_split = broker is not None and broker.faults.split is not None
        config = paper_trade_config({
            **values, "replay": FOLDER[0] / ("split.csv" if has_split else "prices.csv"), **changes
        })  # fmt: skip
        result = PaperTrading(config, broker=broker).run()
        return reconcile(read_session(result.folder))


def assert_explained(found: Reconciliation) -> None:
    """To the cent, in words that are counted."""
    causes = {each.cause: each for each in found.attribution.causes}
    assert "unexplained" not in causes, [each for each in found.attribution.divergent if each.cause == "unexplained"][
        :5
    ]
    equity = np.maximum(found.attribution.backtest["equity"], found.attribution.rows["equity"])
    # A cause decides at most about the account, and about what the transfers bring or take.
    dearest = max(np.nanmax(values) for name, values in found.attribution.rows.items() if name.startswith("close_"))
    moved = sum(abs(each.quantity) for each in found.record.adjustments) * dearest
    assert all(abs(each.worth) < max(equity) + 2 * moved for each in causes.values()), causes
    # A row that differs by less than 1e-9 of it needs no cause.
    assert abs(found.attribution.rounding) < 1e-9 * len(equity) * max(equity)
    assert sum(each.worth for each in causes.values()) == pytest.approx(found.difference, abs=1e-4)
    for each in causes.values():
        assert each.times > 0, each
        own = sum(part.at_once for part in found.attribution.divergent if part.cause == each.cause)
        assert own + each.followed == pytest.approx(each.worth, abs=1e-6)


def causes_of(found: Reconciliation) -> set[str]:
    return {each.cause for each in found.attribution.causes}


FAULTS = {
    "sim_latency_s": st.sampled_from([0.0, 0.0, 20.0, 280.0, 400.0]),
    "sim_latency_jitter_s": st.sampled_from([0.0, 0.0, 100.0, 400.0]),
    "sim_partial_fill_rate": st.sampled_from([0.0, 0.3, 1.0]),
    "sim_rest_of_order": st.sampled_from(["open", "canceled"]),
    "sim_reject_rate": st.sampled_from([0.0, 0.0, 0.2]),
    "sim_lost_answer_rate": st.sampled_from([0.0, 0.2]),
    "sim_outage_rate": st.sampled_from([0.0, 0.0, 0.15]),
    "sim_outage_bars": st.integers(1, 4),
    "sim_seed": st.integers(0, 1_000),
}
RULES = {
    "fee_bps": st.sampled_from([0.0, 5.0]),
    "fixed_fee": st.sampled_from([0.0, 0.5, 20.0]),
    "slippage_bps": st.sampled_from([0.0, 2.0]),
    "lot_size": st.sampled_from([0.0, 0.5, 7.0]),
    "min_order": st.sampled_from([0.0, 300.0]),
    "limit_bps": st.sampled_from([None, None, 5.0, 30.0]),
    "stop_loss": st.sampled_from([None, None, 0.01]),
    "take_profit": st.sampled_from([None, None, 0.01]),
    "size_at": st.sampled_from(["fill", "decision"]),
    "max_gross": st.sampled_from([1.0, 1.0, 2.0]),
    "financing_bps_per_year": st.sampled_from([None, None, 500.0]),
    "min_cash": st.sampled_from([0.0, 0.05]),
    "flat_at_close": st.booleans(),
    "guard_order_money": st.sampled_from([None, None, 4_000.0]),
}


def given_of(drawn: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in drawn.items() if value is not None}


SIMULATED = st.tuples(
    st.sampled_from(MODES),
    st.fixed_dictionaries(FAULTS),
    st.one_of(st.fixed_dictionaries(RULES).map(given_of), st.just({"fill_at": "close"})),
)
BY_QUANTITY = st.tuples(
    st.sampled_from(MODES),
    st.builds(
        Faults,
        part=st.sampled_from([0.0, 0.3, 0.6]),
        reject=st.sampled_from([0.0, 0.2]),
        late=st.sampled_from([0.0, 0.3]),
        away=st.sampled_from([0.0, 0.1]),
        charged=st.sampled_from([0.0, 0.3]),
        moved=st.sampled_from([0.0, 0.1, 0.3]),
        slip=st.sampled_from([0.0, 1e-3]),
        fee=st.sampled_from([0.0, 0.3]),
        charge=st.sampled_from([-2.0, 1.5]),
        split=st.sampled_from([None, None, 0, 2]),
        seed=st.integers(0, 1_000),
    ),
    st.fixed_dictionaries({
        "limit_bps": st.sampled_from([None, 5.0]),
        "size_at": st.sampled_from(["fill", "decision"]),
        "max_gross": st.sampled_from([1.0, 2.0]),
        "stop_loss": st.sampled_from([None, 0.01]),
        "take_profit": st.sampled_from([None, None, 0.01]),
        "lot_size": st.sampled_from([0.0, 0.0, 0.5, 7.0]),
        "min_order": st.sampled_from([0.0, 300.0]),
        "min_cash": st.sampled_from([0.0, 0.05]),
        "fee_bps": st.sampled_from([0.0, 5.0]),
        "financing_bps_per_year": st.sampled_from([None, None, 500.0]),
        "flat_at_close": st.booleans(),
        "guard_order_money": st.sampled_from([None, None, 4_000.0]),
    }).map(given_of),
)  # fmt: skip


def check_simulated(mixture: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    mode, faults, rules = mixture
    assert_explained(reconciled(mode, **faults, **rules))


def check_by_quantity(mixture: tuple[str, Faults, dict[str, Any]]) -> None:
    mode, faults, rules = mixture
    broker = QuantityBroker(MARKET.symbols, 10_000.0, faults, WHOLE_SHORTS)
    assert_explained(reconciled(mode, broker, **rules))


@settings(max_examples=COSTLY)
@given(SIMULATED)
def test_any_faults_of_the_simulated_broker_are_explained(mixture: Any) -> None:
    check_simulated(mixture)


@settings(max_examples=COSTLY)
@given(BY_QUANTITY)
def test_any_faults_of_a_broker_by_quantity_are_explained(mixture: Any) -> None:
    check_by_quantity(mixture)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@settings(max_examples=searched(200))
@given(SIMULATED)
def test_hundreds_of_mixtures_at_the_simulated_broker(mixture: Any) -> None:
    check_simulated(mixture)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@settings(max_examples=searched(100))
@given(BY_QUANTITY)
def test_hundreds_of_mixtures_at_a_broker_by_quantity(mixture: Any) -> None:
    check_by_quantity(mixture)


class TestByName:
    """The mixtures that were met first."""

    @pytest.mark.parametrize("mode", MODES)
    def test_shorts_of_whole_shares_are_rounded(self, mode: str) -> None:
        found = reconciled(mode, QuantityBroker(MARKET.symbols, 10_000.0, Faults(), WHOLE_SHORTS))
        assert_explained(found)
        assert "rounded" in causes_of(found)

    def test_transfers_of_money_and_shares(self) -> None:
        broker = QuantityBroker(MARKET.symbols, 10_000.0, Faults(moved=0.2), WHOLE_SHORTS)
        found = reconciled("target_weights", broker)
        assert_explained(found)
        assert "adjusted" in causes_of(found)

    def test_a_margin_call_that_the_broker_does_not_make(self) -> None:
        """Shares leave an account that has borrowed; the backtest closes what is left, and the broker waits."""
        broker = QuantityBroker(MARKET.symbols, 10_000.0, Faults(moved=0.1, charge=-2.0, seed=161), WHOLE_SHORTS)
        found = reconciled("buy_hold_sell", broker, size_at="fill", max_gross=2.0)
        assert_explained(found)
        assert "margin_call" in causes_of(found)

    def test_a_margin_call_instead_of_a_stop(self) -> None:
        """The backtest stops positions out; the broker does not, and so the account lacks margin as well."""
        faults = Faults(reject=0.2, away=0.1, moved=0.3, fee=0.3, charge=1.5, seed=124705)
        broker = QuantityBroker(MARKET.symbols, 10_000.0, faults, WHOLE_SHORTS)
        rules = {"stop_loss": 0.01, "take_profit": 0.01, "fee_bps": 5.0, "min_order": 300.0, "min_cash": 0.05}
        found = reconciled("buy_hold_sell", broker, max_gross=2.0, flat_at_close=True, **rules)
        assert_explained(found)
        assert {"lapsed", "margin_call"} <= causes_of(found)

    def test_lots_before_a_split(self) -> None:
        faults = Faults(reject=0.2, charged=0.3, moved=0.1, charge=-2.0, split=0, seed=864537)
        broker = QuantityBroker(MARKET.symbols, 10_000.0, faults, WHOLE_SHORTS)
        rules = {"limit_bps": 5.0, "size_at": "decision", "max_gross": 2.0, "lot_size": 0.5, "min_order": 300.0}
        more = {"take_profit": 0.01, "fee_bps": 5.0, "min_cash": 0.05, "financing_bps_per_year": 500.0}
        assert_explained(reconciled("trade", broker, **rules, **more))

    def test_a_flat_account_at_the_end_of_a_market_session(self) -> None:
        """Every order was refused, so there is none that shows the closing."""
        broker = QuantityBroker(MARKET.symbols, 10_000.0, Faults(), WHOLE_SHORTS)
        found = reconciled("discrete", broker, flat_at_close=True, guard_order_money=4_000.0)
        assert_explained(found)
        assert "refused" in causes_of(found)

    @pytest.mark.parametrize("rest", ["open", "canceled"])
    def test_lots_and_fixed_fees_with_parts(self, rest: str) -> None:
        faults = {"sim_partial_fill_rate": 0.6, "sim_rest_of_order": rest}
        assert_explained(reconciled("target_weights", lot_size=7.0, fixed_fee=20.0, **faults))

    def test_limits_with_latency_and_outages(self) -> None:
        faults = {"sim_latency_s": 20.0, "sim_latency_jitter_s": 200.0, "sim_outage_rate": 0.15, "sim_outage_bars": 3}
        found = reconciled("target_weights", limit_bps=10.0, **faults)
        assert_explained(found)
        assert "delay" in causes_of(found)

    def test_orders_that_lapse_during_an_outage(self) -> None:
        """Their choice is undone, though bars have passed without a decision."""
        faults = {"sim_latency_s": 400.0, "sim_outage_rate": 0.3, "sim_outage_bars": 3}
        assert_explained(reconciled("discrete", **faults))

    def test_a_limit_that_lapses_in_another_account(self) -> None:
        """The last backtest has the session's own quantities, though earlier ones fill another part of an order."""
        faults = Faults(part=0.3, away=0.1, charged=0.3, moved=0.3, fee=0.3, charge=1.5, seed=452388)
        check_by_quantity((
            "target_weights",
            faults,
            {"limit_bps": 5.0, "size_at": "fill", "lot_size": 7.0, "take_profit": 0.01, "min_cash": 0.05},
        ))  # fmt: skip
