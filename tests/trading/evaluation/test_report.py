import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.trading.evaluation.page import page_charts
from ml_pipeline.trading.evaluation.report import as_json, results_table, write_report


def test_the_table_names_span_costs_and_annualization_and_prints_a_dash_for_what_is_undefined(
    evaluation_of, tiny_market
):
    evaluation = evaluation_of(tiny_market(close=[100, 110, 99, 120]), fee_bps=7)
    table = results_table(evaluation)
    lines = table.splitlines()
    assert lines[0] == "A, test split: 2024-01-01 to 2024-01-04, 4 bars, after fees of 7 bps"
    assert replace(evaluation, split="all").title.startswith("A, all data: 2024-01-01 to")
    assert lines[2:4] == [
        "Only 4 bars: below 30, luck decides ratios, so they are not shown.",
        "The agent never traded: it stayed in cash.",
    ]
    assert lines[5].split("  ")[-1] == "random (mean of 2)"
    sharpe = next(line for line in lines if line.startswith("Sharpe"))
    assert sharpe.split()[2] == "-"  # the agent stayed flat
    assert "Annualized by 252 (daily bars, not on weekends: 252 a year)." in lines
    assert "nan" not in table


def test_the_files_hold_the_ledger_and_every_figure(evaluation_of, tiny_market, tmp_path):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, (40, 2)).cumsum(axis=0))
    prices[:5, 1] = 0
    tradable = prices > 0
    market = tiny_market(prices, tradable=tradable)
    evaluation = evaluation_of(market, np.array([0.5, 0.5]), action_mode="target_weights")
    write_report(tmp_path / "new" / "folder", evaluation)
    folder = tmp_path / "new" / "folder"

    with (folder / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert rows[0]["time"] == "2024-01-01 00:00:00"
    assert rows[0]["close_B"] == ""  # not listed yet
    for name, values in evaluation.agent.items():
        if name != "time":
            written = [float(row[name] or "nan") for row in rows]
            np.testing.assert_array_equal(written, values, err_msg=name)  # every digit

    figures = json.loads((folder / "evaluation.json").read_text())
    assert figures["agent"]["total_return"] == evaluation.figures["agent"]["total_return"]
    assert figures["buy_and_hold"].keys() == figures["random"].keys() == figures["agent"].keys()
    assert figures["periods_per_year"] == 252
    assert figures["fee_bps"] == 5
    assert (folder / "equity.png").read_bytes().startswith(b"\x89PNG")


def test_undefined_figures_are_null_in_json(evaluation_of, tiny_market, tmp_path):
    write_report(tmp_path, evaluation_of(tiny_market(close=[100, 110, 99, 120])))
    assert json.loads((tmp_path / "evaluation.json").read_text())["agent"]["sharpe"] is None


def test_trades_are_written(evaluation_of, tiny_market, tmp_path):
    write_report(tmp_path, evaluation_of(tiny_market(close=[100, 110, 99, 120]), action=2, fee_bps=0))
    with (tmp_path / "trades.csv").open() as file:
        (trade,) = csv.DictReader(file)
    assert (trade["symbol"], trade["side"], trade["entry_time"]) == ("A", "long", "2024-01-02 00:00:00")
    assert float(trade["profit"]) == pytest.approx(10_000 * (120 / 110 - 1))


def test_random_figures_are_means(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market(close=[100, 110, 99, 120, 130, 110]), fee_bps=0)
    ends = [ledger["equity"][-1] / ledger["equity"][0] - 1 for ledger in evaluation.random]
    assert evaluation.figures["random"]["total_return"] == pytest.approx(np.mean(ends))


@pytest.mark.parametrize("close", [[100, 100], [100, 1, 1e-3, 1e-4]], ids=["two bars", "ruin"])
def test_extreme_runs_can_be_drawn(evaluation_of, tiny_market, tmp_path, close):
    write_report(tmp_path, evaluation_of(tiny_market(close=close), action=2))
    assert (tmp_path / "equity.png").exists()


def test_the_title_names_every_cost(evaluation_of, tiny_market):
    costs = {"fee_bps": 5, "sell_fee_bps": 9, "fixed_fee": 2, "slippage_bps": 1, "borrow_bps_per_year": 300}
    title = evaluation_of(tiny_market([100, 101, 102]), **costs).title
    assert title.endswith(
        "after fees of 5 bps and 9 on sales, 2 per order, slippage of 1 bps, borrowing at 300 bps a year"
    )


def test_ratios_stand_with_their_errors_and_intervals(evaluation_of, tiny_market):
    """A policy that holds in every second bar, of a market that falls now and then: each ratio is defined."""
    generator = np.random.default_rng(1)
    market = tiny_market(100 * np.exp(np.cumsum(generator.normal(0.002, 0.01, 200))))
    evaluation = evaluation_of(market, lambda seen: 2 if seen[0] % 2 else 1, fee_bps=1)
    figures = evaluation.figures["agent"]
    rows = {line[:20].strip(): line for line in results_table(evaluation).splitlines()}
    assert f"{figures['sharpe']:.2f} ± {figures['sharpe_se']:.2f}" in rows["Sharpe ratio"]
    assert f"{figures['sortino']:.2f} ± {figures['sortino_se']:.2f}" in rows["Sortino ratio"]
    low, high = figures["calmar_low"], figures["calmar_high"]
    assert f"{figures['calmar']:.2f} ({low:g} to {high:g})" in rows["Calmar ratio"]
    assert low < figures["calmar"] < high
    assert f"{figures['win_rate']:.1%}"[:-1] + f" ± {figures['win_rate_se']:.1%}"[:-1] + " %" in rows["Winning trades"]
    assert f"({figures['profit_factor_low']:g} to " in rows["Profit factor"]
    assert "Lo 2002" in results_table(evaluation)
    assert {"sharpe_se", "sortino_se", "calmar_low", "calmar_high"} <= set(as_json(evaluation)["agent"])


def test_equal_weight_is_left_out_where_it_is_buy_and_hold(evaluation_of, tiny_market):
    walks = 100 * np.exp(np.random.default_rng(2).normal(0, 0.01, (60, 2)).cumsum(axis=0))
    one = evaluation_of(tiny_market(walks[:, :1]), action=2)
    assert "equal weight" not in results_table(one)
    assert "equal weight" not in [curve.label for curve in page_charts(one)[0].curves]
    assert as_json(one)["equal_weight"] == as_json(one)["buy_and_hold"]  # the file keeps its keys
    two = evaluation_of(tiny_market(walks), np.array([0.5, 0.5]), action_mode="target_weights")
    assert "equal weight" in results_table(two)
    assert "equal weight" in [curve.label for curve in page_charts(two)[0].curves]
