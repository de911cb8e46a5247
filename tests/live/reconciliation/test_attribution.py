"""The cause that is found is the one that was put in, and what it is worth is what running without it says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.reconciliation.attribution import Attribution, attribute
from ml_pipeline.live.reconciliation.backtest import SessionBacktest, same_bits
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.prepared_market import prepare_market
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.market.data import MarketData
from tests.examples import COSTLY
from tests.live.reconciliation.sessions import (
    RULES,
    WARM_UP,
    Fault,
    choosing,
    model_of,
    restless,
    small_market,
    trade,
    with_rules,
)

MARKET = small_market()
MODEL = model_of(MARKET, RULES)
# Fault -> the cause that it is found as.
FAULTS = {
    "rejected": (Fault("rejected", 5, 0), "rejected"),
    "all rejected": (Fault("rejected", 5, None), "rejected"),
    "refused": (Fault("refused", 6, 1), "refused"),
    "all refused": (Fault("refused", 6, None), "refused"),
    "lapsed": (Fault("lapsed", 7, 1), "lapsed"),
    "missed": (Fault("missed", 8, None), "missed_bar"),
    "late": (Fault("late", 9, None), "missed_bar"),
    "broker away": (Fault("broker_away", 10, None), "broker_away"),
    "in part": (Fault("partial", 11, 0, 0.4), "partial_fill"),
    "price": (Fault("price", 12, 0, 1.002), "fill_price"),
    "delay": (Fault("delay", 13, 1, 0.99), "delay"),
    "costs": (Fault("costs", 14, 1, 7.0), "costs"),
    "charge": (Fault("charge", 15, None, 3.0), "costs"),
    "flatten": (Fault("flatten", 16, None), "by_hand"),
}


def evaluated(market: MarketData, model: Any, first: int = WARM_UP) -> dict[str, Any]:
    """The ledger of the evaluation of the bars from `first` on: nothing of `reconciliation`."""
    table = compute_features(market, model.features)
    prepared = prepare_market(market, table, model.scaler, model.rules)
    env = StatefulTradingEnv(prepared.bars(first - model.window + 1, market.n_bars), model.rules, window=model.window)
    return run_policy(env, model.act)


def found(record: RecordedSession) -> Attribution:
    return attribute(record, SessionBacktest(record))


def assert_adds_up(attribution: Attribution) -> None:
    rows, tested = attribution.rows["equity"], attribution.backtest["equity"]
    whole = float(rows[-1] - tested[-1])
    assert sum(each.worth for each in attribution.causes) + attribution.rounding == pytest.approx(whole, abs=1e-9)
    assert abs(attribution.rounding) < 1e-8 * float(rows[0])
    for each in attribution.causes:
        own = sum(part.at_once for part in attribution.divergent if part.cause == each.cause)
        assert own + each.followed == pytest.approx(each.worth, abs=1e-9)


def worth_by_the_ledgers(session: dict[str, Any], backtest: dict[str, Any], symbols: Sequence[str]) -> float:
    """The difference of the final equities, added up fill by fill at the last close: an independent way to it."""

    def gain(ledger: dict[str, Any]) -> float:
        gained = -float(ledger["costs_paid"][-1])
        for symbol in symbols:
            filled, last = ledger[f"filled_{symbol}"], ledger[f"close_{symbol}"][-1]
            gained += float(np.sum(filled * (last - np.nan_to_num(ledger[f"fill_price_{symbol}"], nan=last))))
        return gained

    return gain(session) - gain(backtest)


class TestSessionsWithoutFaults:
    @pytest.mark.parametrize("mode", ["target_weights", "trade"])
    def test_the_ledger_of_an_evaluation_has_no_difference(self, mode: str) -> None:
        model = with_rules(MODEL, action_mode=mode)
        record = RecordedSession(MARKET, evaluated(MARKET, model), [model])
        attribution = found(record)
        assert same_bits(attribution.backtest, record.ledger)
        assert not attribution.causes
        assert attribution.difference == 0.0

    @pytest.mark.parametrize(
        "changes",
        [
            {"stop_loss": 0.02, "take_profit": 0.03},
            {"limit_bps": 20.0},
            {"max_gross": 2.0, "max_position": 1.0, "financing_bps_per_year": 400.0},
            {"size_at": "decision", "fixed_fee": 1.0},
            {"fill_at": "close"},
        ],
    )
    def test_nor_under_any_rules(self, changes: dict[str, Any]) -> None:
        model = with_rules(MODEL, **changes)
        record = RecordedSession(MARKET, evaluated(MARKET, model), [model])
        assert same_bits(found(record).backtest, record.ledger)

    def test_nor_with_choices_of_one_asset(self) -> None:
        market = small_market(n_symbols=1)
        model = model_of(market, TradingRules(), choosing)
        record = RecordedSession(market, evaluated(market, model), [model])
        assert same_bits(found(record).backtest, record.ledger)
        assert np.any(record.ledger["filled_SYNTH"])

    def test_a_session_may_begin_at_any_bar(self) -> None:
        record = RecordedSession(MARKET, evaluated(MARKET, MODEL, first=40), [MODEL])
        assert same_bits(found(record).backtest, record.ledger)


class TestImpossibleActions:
    @pytest.mark.parametrize("broken", [np.array([np.nan, 0.5], np.float32), UserError("its weights are NaN")])
    def test_trade_nothing_as_in_the_live_loop(self, broken: Any) -> None:
        calls = iter(range(1_000))

        def act(observation: Any) -> Any:
            if next(calls) != 10:
                return restless(observation)
            if isinstance(broken, Exception):
                raise broken
            return broken

        filled = SessionBacktest(RecordedSession(MARKET, evaluated(MARKET, MODEL), [replace(MODEL, act=act)])).run()
        assert not filled["filled_SYNTH1"][11]
        assert filled["filled_SYNTH1"][10]
        assert filled["filled_SYNTH1"][12]


class TestOneFault:
    @pytest.mark.parametrize("name", FAULTS)
    def test_is_found_and_worth_what_running_without_it_says(self, name: str) -> None:
        fault, cause = FAULTS[name]
        attribution = found(trade(MARKET, MODEL, [fault]))
        (only,) = attribution.causes
        assert only.cause == cause
        without = trade(MARKET, MODEL).ledger["equity"][-1]
        with_it = trade(MARKET, MODEL, [fault]).ledger["equity"][-1]
        assert only.worth == pytest.approx(with_it - without, abs=1e-7)
        assert only.worth != 0
        assert_adds_up(attribution)

    @pytest.mark.parametrize("name", FAULTS)
    def test_is_told_at_its_bar(self, name: str) -> None:
        fault, cause = FAULTS[name]
        divergent = found(trade(MARKET, MODEL, [fault])).divergent
        assert {(each.cause, each.bar) for each in divergent} == {(cause, fault.bar + 1)}
        if fault.asset is not None:
            assert {each.symbol for each in divergent} == {MARKET.symbols[fault.asset]}

    def test_is_counted_where_its_bar_shows_no_gain(self) -> None:
        """The bar of the fill closes where it opened, at no costs: only later bars show what was missed."""
        opened = MARKET.open.copy()
        opened[WARM_UP + 6] = MARKET.close[WARM_UP + 6]
        market = replace(MARKET, open=opened)
        free = {"fee_bps": 0.0, "slippage_bps": 0.0, "borrow_bps_per_year": 0.0}
        (only,) = found(trade(market, with_rules(MODEL, **free), [Fault("rejected", 5, 0)])).causes
        assert (only.cause, only.times, only.at_once) == ("rejected", 1, 0.0)
        assert only.worth != 0

    def test_orders_that_were_sized_before_the_fill(self) -> None:
        attribution = found(trade(MARKET, MODEL, sized_at_decision=True))
        (only,) = attribution.causes
        assert only.cause == "sized_before_fill"
        without = trade(MARKET, MODEL).ledger["equity"][-1]
        assert only.worth == pytest.approx(attribution.rows["equity"][-1] - without, abs=1e-7)

    @pytest.mark.parametrize("name", ["rejected", "missed", "flatten", "in part"])
    def test_with_choices_that_are_taken_back(self, name: str) -> None:
        market = small_market(n_symbols=1, n_bars=140)
        model = model_of(market, TradingRules(), choosing)
        plain = trade(market, model).ledger
        opens = (plain["filled_SYNTH"] != 0) & (plain["position_SYNTH"] != 0)
        k = int(np.flatnonzero(opens)[2]) - 1
        fault = FAULTS[name][0]._replace(bar=k, asset=0 if name in {"rejected", "in part"} else None)
        attribution = found(trade(market, model, [fault]))
        assert [each.cause for each in attribution.causes] == [FAULTS[name][1]]
        assert_adds_up(attribution)

    def test_a_corrected_bar(self) -> None:
        record = trade(MARKET, MODEL)
        bar = WARM_UP + 20
        close, high = MARKET.close.copy(), MARKET.high.copy()
        close[bar] *= 1.02
        high[bar] = np.maximum(high[bar], close[bar])
        corrected = replace(MARKET, close=close, high=high)
        attribution = found(replace(record, corrected=corrected, corrections=[MARKET.times[bar]]))
        assert [each.cause for each in attribution.causes] == ["corrected_bar"]
        assert same_bits(attribution.backtest, evaluated(corrected, MODEL))
        assert_adds_up(attribution)

    def test_a_ledger_that_the_record_does_not_explain(self) -> None:
        record = trade(MARKET, MODEL)
        ledger = {name: values.copy() for name, values in record.ledger.items()}
        for name in ("cash", "equity"):
            ledger[name][30:] -= 12.5
        attribution = found(replace(record, ledger=ledger))
        assert [each.cause for each in attribution.causes] == ["unexplained"]
        assert attribution.divergent[0].bar == 30
        assert attribution.divergent[0].at_once == pytest.approx(-12.5)
        assert_adds_up(attribution)


ALL = [fault for fault, _ in FAULTS.values()]


class TestManyFaults:
    def test_all_together_add_up(self) -> None:
        record = trade(MARKET, MODEL, ALL, sized_at_decision=True)
        attribution = found(record)
        causes = [each.cause for each in attribution.causes]
        assert set(causes) == {cause for _, cause in FAULTS.values()} | {"sized_before_fill"}
        assert_adds_up(attribution)
        by_fills = worth_by_the_ledgers(attribution.rows, attribution.backtest, MARKET.symbols)
        assert sum(each.worth for each in attribution.causes) == pytest.approx(by_fills, abs=1e-6)

    @settings(max_examples=COSTLY)
    @given(
        faults=st.lists(
            st.builds(
                Fault,
                st.sampled_from(["rejected", "refused", "lapsed", "partial", "price", "delay", "costs"]),
                st.integers(0, 66),
                st.integers(0, 1),
                st.floats(0.95, 0.999),
            ),
            max_size=12,
            unique_by=lambda fault: fault[1:3],
        ),
        sized_at_decision=st.booleans(),
    )
    def test_any_of_them_add_up_and_are_explained(self, faults: list[Fault], sized_at_decision: bool) -> None:
        attribution = found(trade(MARKET, MODEL, faults, sized_at_decision=sized_at_decision))
        assert "unexplained" not in {each.cause for each in attribution.causes}
        assert_adds_up(attribution)


class TestModelsInTurn:
    def test_the_second_one_decides_from_its_first_bar_on(self) -> None:
        first = trade(MARKET, MODEL)
        at = WARM_UP + 30
        still = replace(MODEL, act=lambda observation: np.zeros(2, np.float32), first_bar=MARKET.times[at], window=3)
        record = replace(first, models=[MODEL, still])
        ledger = SessionBacktest(record).run()
        same = first.ledger
        for name in same.keys() - {"time"}:
            np.testing.assert_allclose(ledger[name][:31], same[name][:31], rtol=1e-9)
        assert not np.any(ledger["position_SYNTH1"][31:])
        assert np.any(ledger["position_SYNTH1"][30])

    def test_choices_follow_from_what_is_held(self) -> None:
        market = small_market(n_symbols=1)
        rules = TradingRules()
        model = model_of(market, rules, lambda observation: 2)
        again = replace(model, first_bar=market.times[40])
        record = RecordedSession(market, evaluated(market, model), [model, again])
        assert same_bits(SessionBacktest(record).run(), record.ledger)  # the second one finds itself long
