import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.live.reconciliation.attribution import DivergentBar
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation, reconcile
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.live.reconciliation.report import write_reconciliation_page
from tests.live.reconciliation.sessions import RULES, Fault, model_of, small_market, trade, with_rules
from tests.live.reconciliation.test_attribution import evaluated

MARKET = small_market()
MODEL = model_of(MARKET, RULES)
FAULTS = [Fault("rejected", 5, 0), Fault("price", 12, 1, 1.002), Fault("missed", 20, None)]


@pytest.fixture(scope="module")
def faulty() -> Reconciliation:
    return reconcile(trade(MARKET, MODEL, FAULTS))


class TestText:
    def test_of_equal_ledgers_says_bit_for_bit_in_a_sentence(self) -> None:
        found = reconcile(RecordedSession(MARKET, evaluated(MARKET, MODEL), [MODEL]))
        assert found.is_equal
        assert found.verdict == "The session's ledger equals the backtest's, bit for bit: 68 bars, no difference."
        assert found.verdict in found.text
        assert not found.cause_rows

    def test_of_others_names_each_cause_and_the_sum(self, faulty: Reconciliation) -> None:
        rows = {row[0]: row for row in faulty.cause_rows[1:]}
        assert list(rows) == ["missed bar", "rejected", "fill price", "rounding", "all"]
        parts = sum(float(row[4].replace(",", "")) for name, row in rows.items() if name != "all")
        assert parts == pytest.approx(float(rows["all"][4].replace(",", "")), abs=0.03)
        assert f"{faulty.difference:+,.2f}" in faulty.text

    def test_says_what_so_few_bars_cannot_say(self, faulty: Reconciliation) -> None:
        assert "too few to distinguish its return from chance" in faulty.text
        assert "68 bars" in faulty.text

    def test_one_bit_is_a_difference(self) -> None:
        model = with_rules(MODEL, borrow_bps_per_year=0.0)
        ledger = evaluated(MARKET, model)
        ledger["equity"] = ledger["equity"].copy()
        ledger["equity"][-1] = np.nextafter(ledger["equity"][-1], np.inf)
        found = reconcile(RecordedSession(MARKET, ledger, [model]))
        assert not found.is_equal
        assert "bit for bit" not in found.text
        assert found.attribution.rounding == found.difference != 0


class TestJson:
    def test_holds_every_figure_and_no_nan(self, faulty: Reconciliation) -> None:
        figures = json.loads(json.dumps(faulty.as_json(), allow_nan=False))
        assert figures["bit_for_bit"] is False
        money = sum(each["worth"] for each in figures["causes"]) + figures["rounding"]
        assert money == pytest.approx(figures["difference"]["money"])
        assert {each["cause"] for each in figures["parted"]} == {"rejected", "fill_price", "missed_bar"}


class TestPage:
    def test_shows_both_and_needs_no_network(self, faulty: Reconciliation, tmp_path: Path) -> None:
        write_reconciliation_page(tmp_path / "page.html", faulty)
        page = (tmp_path / "page.html").read_text()
        for text in ("Session minus backtest", "Where they differ", "missed bar", "costs-met.yaml", faulty.verdict):
            assert text in page
        assert 'src="http' not in page
        assert 'href="http' not in page

    def test_of_equal_ledgers_has_no_table_of_differences(self, tmp_path: Path) -> None:
        found = reconcile(RecordedSession(MARKET, evaluated(MARKET, MODEL), [MODEL]))
        write_reconciliation_page(tmp_path / "page.html", found)
        page = (tmp_path / "page.html").read_text()
        assert "bit for bit" in page
        assert "Where they differ" not in page

    def test_of_a_long_session_stays_below_3_mb(self, tmp_path: Path) -> None:
        n = 100_000
        generator = np.random.default_rng(0)
        market = small_market(n_bars=60)
        short = reconcile(trade(market, model_of(market, RULES), FAULTS))
        times = np.datetime64("2020-01-01", "ns") + np.arange(n) * np.timedelta64(60, "s")
        equity = 1e4 * np.exp(np.cumsum(generator.normal(0, 1e-4, n)))
        rows = {"time": times, "equity": equity, "costs_paid": np.cumsum(generator.random(n))}
        tested = {**rows, "equity": equity + np.cumsum(generator.normal(0, 0.1, n))}
        at, prices = np.sort(generator.integers(1, n, 20_000)), generator.normal(100, 1, 20_000)
        divergent = [
            DivergentBar("fill_price", int(bar), "SYNTH1", float(price), f"filled at {price:.10g}, assumed {price:.9g}")
            for bar, price in zip(at, prices, strict=True)
        ]
        one = short.filled[0]
        filled = [
            one._replace(bar=int(bar), price=float(price), quantity=float(quantity))
            for bar, price, quantity in zip(
                np.sort(generator.integers(0, n - 1, 50_000)),
                generator.normal(100, 1, 50_000),
                generator.normal(10, 1, 50_000),
                strict=True,
            )
        ]
        attribution = replace(short.attribution, rows=rows, backtest=tested, divergent=divergent)
        write_reconciliation_page(tmp_path / "page.html", replace(short, attribution=attribution, filled=filled))
        assert (tmp_path / "page.html").stat().st_size < 3_000_000
        assert "The 5,000 rows with the largest amounts, of 20,000." in (tmp_path / "page.html").read_text()
