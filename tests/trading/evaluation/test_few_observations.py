"""Few bars and few trades: warned of by themselves, and below a minimum no ratio is shown anywhere."""

import json
import math
import re

import numpy as np
import pytest

from ml_pipeline.trading.evaluation.remarks import headlines, remarks
from ml_pipeline.trading.evaluation.report import results_table, write_report

RATIOS = ("sharpe", "sortino", "calmar", "win_rate", "profit_factor")


def _walk(n_bars, seed=0, drift=0.001):
    return 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(drift, 0.01, n_bars)))


def _every(k):
    """Long in one of two stretches of k bars: a trade in each 2 k bars."""
    return lambda seen: 2 if seen[0] // k % 2 == 0 else 1


def test_below_thirty_bars_no_ratio_is_shown_and_a_sentence_says_why(evaluation_of, tiny_market, tmp_path):
    evaluation = evaluation_of(tiny_market(_walk(29)), _every(1))
    assert evaluation.figures["agent"]["n_trades"] > 10
    for name in ("agent", "buy_and_hold", "equal_weight", "random"):
        assert all(math.isnan(evaluation.figures[name][ratio]) for ratio in RATIOS), name
    assert headlines(evaluation)[0].startswith("Only 29 bars: below 30, luck decides ratios, so they are not shown.")
    rows = {line[:20].strip(): line for line in results_table(evaluation).splitlines()}
    for title in ("Sharpe ratio", "Sortino ratio", "Calmar ratio", "Winning trades", "Profit factor"):
        assert rows[title].removeprefix(title).split() == ["-"] * 3
    assert "alpha" not in " ".join(remarks(evaluation))  # it is annualized from the same bars
    write_report(tmp_path, evaluation)
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert [written["agent"][ratio] for ratio in (*RATIOS, "sharpe_se", "profit_factor_low")] == [None] * 7
    assert written["alpha_beta"]["alpha"] is None
    assert written["headlines"] == headlines(evaluation)


def test_thirty_bars_have_ratios(evaluation_of, tiny_market):
    figures = evaluation_of(tiny_market(_walk(30)), _every(1)).figures["agent"]
    assert not any(math.isnan(figures[ratio]) for ratio in RATIOS if ratio != "calmar")  # it needs a quarter of a year


def test_below_ten_trades_the_agent_has_no_ratios_but_holding_does(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market(_walk(200)), _every(12))
    agent, holder = evaluation.figures["agent"], evaluation.figures["buy_and_hold"]
    assert agent["n_trades"] == 9
    assert all(math.isnan(agent[ratio]) for ratio in RATIOS)
    assert not math.isnan(holder["sharpe"])
    assert math.isnan(holder["win_rate"])
    assert headlines(evaluation)[0].startswith("Only 9 trades: below 10, luck decides the agent's ratios, so they ")


def test_a_portfolio_that_is_rebalanced_but_never_closed_has_ratios_of_its_bars(evaluation_of, tiny_market):
    market = tiny_market(np.column_stack([_walk(200), _walk(200, 1)]))
    generator = np.random.default_rng(0)
    evaluation = evaluation_of(market, lambda _: generator.uniform(0.2, 0.4, 2), action_mode="target_weights")
    agent = evaluation.figures["agent"]
    assert agent["n_trades"] == 2
    assert not math.isnan(agent["sharpe"])
    assert math.isnan(agent["win_rate"])
    assert math.isnan(agent["profit_factor"])


@pytest.mark.parametrize(
    ("n_bars", "k", "warning"),
    [
        (58, 1, "Few bars (58) and few trades (29): "),
        (90, 1, "Few bars (90): "),
        (400, 10, "Few trades (20): "),
        (400, 4, None),
    ],
)
def test_few_bars_and_few_trades_are_warned_of_by_themselves(evaluation_of, tiny_market, n_bars, k, warning):
    evaluation = evaluation_of(tiny_market(_walk(n_bars)), _every(k))
    found = [sentence for sentence in headlines(evaluation) if sentence.startswith("Few ")]
    assert (warning is None) == (found == [])
    assert warning is None or found[0].startswith(warning)


def test_an_implausible_figure_is_told_with_its_range_however_wide_that_is(evaluation_of, tiny_market):
    """Twelve trades in 60 bars: each gains 2 % a bar but the last, so the profit factor is far above 10."""
    moves = np.where(np.arange(60) % 5 < 2, 0.02, -0.005) + 0.001 * np.sin(np.arange(60))
    moves[55:] = -0.004
    market = tiny_market(100 * np.exp(np.cumsum(moves)))
    evaluation = evaluation_of(market, lambda seen: 2 if seen[0] % 5 in {4, 0} else 1, fee_bps=0, fill_at="close")
    (sentence,) = [each for each in headlines(evaluation) if each.startswith("Implausible")]
    figures = evaluation.figures["agent"]
    assert 10 <= figures["n_trades"] < 30
    assert re.search(r"a profit factor of \d+\.\d over 12 trades \(\d+\.\d to \d+\.\d; above 10\)", sentence)
    assert "perhaps by luck" in sentence
    assert "of daily returns (above 4)" in sentence
    assert " ± " in sentence
    assert "91.7% of 12 trades won (" in sentence
