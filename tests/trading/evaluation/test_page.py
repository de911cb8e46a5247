"""The page: one file, with every number that it shows taken from the ledger, and drawn by a browser."""

import json
import re

import numpy as np
import pytest

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.evaluation.page import Observed, months_table, random_returns, trades_table, write_page
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.timeframes import Calendar


def ledger_of(n, seed, n_symbols=1, start="2023-01-02"):
    """A ledger of random positions that add up, bars of five minutes."""
    generator = np.random.default_rng(seed)
    times = (np.datetime64(start, "s") + np.arange(n) * np.timedelta64(300, "s")).astype("datetime64[ns]")
    cash, worth, paid = np.full(n, 1e4), np.zeros(n), np.zeros(n)
    columns = {}
    for i in range(n_symbols):
        close = 100 * np.exp(np.random.default_rng(100 + i).normal(0, 0.0005, n).cumsum())
        position = np.append(0.0, np.repeat(generator.choice([-20.0, 0.0, 20.0], n // 30 + 2), 30))[:n]
        filled, price = np.diff(position, prepend=0.0), np.append(close[:1], close[:-1])
        costs = np.cumsum(np.abs(filled) * price * 5e-5)
        cash, worth, paid = cash - np.cumsum(filled * price) - costs, worth + position * close, paid + costs
        columns |= {f"close_S{i}": close, f"position_S{i}": position, f"filled_S{i}": filled, f"fill_price_S{i}": price}
    return {"time": times, "equity": cash + worth, "cash": cash, "costs_paid": paid, **columns}


def evaluation_of(n, n_symbols=1):
    agent, holder = ledger_of(n, 0, n_symbols), ledger_of(n, 1, n_symbols)
    return Evaluation(
        split="test",
        agent=agent,
        buy_and_hold=holder,
        equal_weight=holder,
        random=[ledger_of(n, seed, n_symbols) for seed in (2, 3)],
        calendar=Calendar("weekdays", 72_576.0, "bars of 5 minutes"),
        rules=TradingRules(fee_bps=0.5),
    )


@pytest.fixture(scope="module")
def evaluation():
    return evaluation_of(2_000, 2)


def test_it_is_one_file_with_every_part(evaluation, tmp_path):
    write_page(tmp_path / "report.html", evaluation, notes=["<checked>"], marked_rows=[500])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "<li>&lt;checked&gt;</li>" in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    content = json.loads(data)
    titles = [chart["title"] for chart in content["charts"]]
    assert [*titles[:-2], *sorted(titles[-2:])] == [
        "Equity",
        "Drawdown",
        "Sharpe ratio, rolling over 500 bars",
        "Annual volatility, rolling over 500 bars",
        "Exposure",
        "Costs paid",
        "Profit by asset",
        "S0: price and fills",
        "S1: price and fills",
    ]
    assert all(chart["axis"] for chart in content["charts"])
    assert [table["title"] for table in content["tables"]] == ["Trades", "Profit and costs by asset", "Drawdowns"]
    assert content["charts"][0]["marks"][0]["shape"] == "line"


def test_the_trades_show_what_was_observed_at_the_decision(evaluation):
    values = np.arange(2_000.0)[:, None] * [1.0, -1.0]
    table = trades_table(evaluation, Observed(["S0:rsi_14", "S1:rsi_14"], values))
    first, _ = table.bars
    np.testing.assert_array_equal(table.details["S0:rsi_14"], np.asarray(first) - 1)
    np.testing.assert_array_equal(table.details["S1:rsi_14"], 1 - np.asarray(first))
    profits = table.columns[8].values
    assert sum(profits) == pytest.approx(evaluation.agent["equity"][-1] - 1e4)


def test_months_are_colored_by_their_returns():
    times = np.array(["2024-01-31", "2024-02-29", "2024-03-29"], dtype="datetime64[ns]")
    table = months_table(times, np.array([100.0, 110.0, 99.0]))
    assert 'rgba(31, 138, 76, 0.55)">+10.0%' in table
    assert 'rgba(198, 47, 47, 0.55)">-10.0%' in table
    assert "-1.0%" in table


def test_random_returns_stand_over_an_axis(evaluation):
    returns = [each["equity"][-1] / each["equity"][0] - 1 for each in (evaluation.agent, *evaluation.random)]
    returns.append(evaluation.figures["buy_and_hold"]["total_return"])
    drawn = random_returns(evaluation)
    assert f">{min(returns):+,.1%}<" in drawn
    assert f">{max(returns):+,.1%}<" in drawn
    assert ">total return<" in drawn


@pytest.mark.long
def test_a_hundred_thousand_bars_of_ten_symbols_take_less_than_3_mb(tmp_path):
    write_page(tmp_path / "report.html", evaluation_of(100_000, 10))
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


@pytest.mark.system
def test_a_browser_opens_zooms_and_sorts_it_without_an_error(evaluation, tmp_path, browser_page):
    write_page(tmp_path / "report.html", evaluation, observed=Observed(["S0:rsi_14"], np.zeros((2_000, 1))))
    page = browser_page(tmp_path / "report.html")
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator(".chart canvas").count() == 9
    page.locator("#table-0 th button", has_text="profit").click()
    page.locator("#table-0 th button", has_text="profit").click()
    shown = page.locator("#table-0 tbody td:nth-child(9)").all_inner_texts()
    profits = [float(text.replace(",", "")) for text in shown]
    assert profits == sorted(profits, reverse=True)
    page.locator("#table-0 tbody tr").first.click()
    assert "What the agent observed" in page.locator("#table-0").inner_text()
    spans = page.evaluate("document.reportCharts.map(({plot}) => plot.scales.x.max - plot.scales.x.min)")
    assert len({round(span) for span in spans}) == 1
    assert spans[0] < 0.3 * 2_000 * 300
