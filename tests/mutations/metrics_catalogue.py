"""Mistakes that are easily made in the figures of a run and in the checks of an agent."""

from tests.mutations.mutation import Mutation

TRADING = "ml_pipeline/trading"
TRADING_TESTS = "tests/trading"


METRICS = (
    Mutation(
        "365 days of stocks",
        f"{TRADING}/market_calendar.py",
        "per_year = 365.0 if weekend else 252.0",
        "per_year = 365.0",
        f"{TRADING_TESTS}/test_market_calendar.py::test_bars_a_year[stocks daily]",
        "T6a",
    ),
    Mutation(
        "252 days of crypto",
        f"{TRADING}/market_calendar.py",
        "per_year = 365.0 if weekend else 252.0",
        "per_year = 252.0",
        f"{TRADING_TESTS}/test_market_calendar.py::test_bars_a_year[crypto daily]",
        "T6a",
    ),
    Mutation(
        "hourly forex is annualized by 365 days",
        f"{TRADING}/market_calendar.py",
        "return Calendar(name, 252.0 * per_day",
        "return Calendar(name, 365.0 * per_day",
        f"{TRADING_TESTS}/test_market_calendar.py::"
        "test_hourly_forex_counts_whole_weekdays_though_sunday_evening_trades",
        "T6a",
    ),
    Mutation(
        "nobody is told what was annualized by",
        f"{TRADING}/report.py",
        '"", annualization(evaluation), *([said] if said else [])',
        '"", *([said] if said else [])',
        f"{TRADING_TESTS}/test_report.py::"
        "test_the_table_names_span_costs_and_annualization_and_prints_a_dash_for_what_is_undefined",
        "T6b",
    ),
    Mutation(
        "volatility with ddof 0",
        f"{TRADING}/metrics.py",
        "return float(np.std(returns, ddof=1) * np.sqrt(periods_per_year))",
        "return float(np.std(returns) * np.sqrt(periods_per_year))",
        f"{TRADING_TESTS}/test_metrics_against_peers.py::test_equal[252-random 0]",
        "T7a",
    ),
    Mutation(
        "Sharpe with ddof 0",
        f"{TRADING}/metrics.py",
        "np.mean(excess) / np.std(excess, ddof=1) *",
        "np.mean(excess) / np.std(excess) *",
        f"{TRADING_TESTS}/test_metrics_against_peers.py::test_equal[252-random 0]",
        "T7b",
    ),
    Mutation(
        "Sharpe keeps the risk-free return",
        f"{TRADING}/metrics.py",
        "    excess = returns - risk_free\n",
        "    excess = returns\n",
        f"{TRADING_TESTS}/test_metrics.py::test_by_hand",
        "T7b",
    ),
    Mutation(
        "Sortino over losing periods alone",
        f"{TRADING}/metrics.py",
        "np.sqrt(np.mean(losses**2)) *",
        "np.sqrt(np.mean(losses[losses < 0] ** 2)) *",
        f"{TRADING_TESTS}/test_metrics_against_peers.py::test_equal[252-random 0]",
        "T7c",
    ),
    Mutation(
        "drawdown forgets the start",
        f"{TRADING}/metrics.py",
        "return float(drawdown_fraction(equity).min())",
        "return float(drawdown_fraction(equity[1:]).min())",
        f"{TRADING_TESTS}/test_metrics.py::test_the_start_counts_as_a_peak",
        "T7d",
    ),
    Mutation(
        "CAGR counts the bars, not the periods between",
        f"{TRADING}/metrics.py",
        "** (periods_per_year / n) - 1.0)",
        "** (periods_per_year / (n + 1)) - 1.0)",
        f"{TRADING_TESTS}/test_metrics_against_peers.py::test_equal[252-random 0]",
        "T7e",
    ),
    Mutation(
        "Calmar of the total return",
        f"{TRADING}/metrics.py",
        "return cagr(equity, periods_per_year) / -drawdown",
        "return total_return(equity) / -drawdown",
        f"{TRADING_TESTS}/test_metrics_against_peers.py::test_equal[252-random 0]",
        "T7f",
    ),
    Mutation(
        "a flat curve has a Sharpe of 0",
        f"{TRADING}/metrics.py",
        '    if not _varies(excess):\n        return float("nan")',
        "    if not _varies(excess):\n        return 0.0",
        f"{TRADING_TESTS}/test_metrics.py::test_without_variation_there_is_no_sharpe[flat]",
        "T7g",
    ),
    Mutation(
        "what is undefined is printed as nan",
        f"{TRADING}/report.py",
        'return form.format(value * factor) if math.isfinite(value) else "-"',
        "return form.format(value * factor)",
        f"{TRADING_TESTS}/test_report.py::"
        "test_the_table_names_span_costs_and_annualization_and_prints_a_dash_for_what_is_undefined",
        "T7h",
    ),
    Mutation(
        "a trade that breaks even is won",
        f"{TRADING}/metrics.py",
        "sum(profit > 0 for profit in profits)",
        "sum(profit >= 0 for profit in profits)",
        f"{TRADING_TESTS}/test_metrics.py::test_by_hand",
        "T7i",
    ),
    Mutation(
        "turnover of one side",
        f"{TRADING}/metrics.py",
        'ledger["equity"][:-1]).sum())',
        'ledger["equity"][:-1]).sum() / 2)',
        f"{TRADING_TESTS}/test_metrics.py::test_turnover_counts_both_sides",
        "T7j",
    ),
)

SANITY = (
    Mutation(
        "an agent that is not rich passes",
        f"{TRADING}/sanity.py",
        "agent > _RICH * possible,",
        "True,",
        f"{TRADING_TESTS}/test_sanity.py::test_an_agent_that_guesses_fails",
        "T10a",
    ),
    Mutation(
        "what is known of the next bar comes a bar late",
        f"{TRADING}/sanity.py",
        "axis=0, append=np.nan)",
        "axis=0, prepend=np.nan)",
        f"{TRADING_TESTS}/test_sanity.py::test_each_check_is_a_line_and_all_pass",
        "T10a",
    ),
    Mutation(
        "riches out of shuffled returns pass",
        f"{TRADING}/sanity.py",
        "not agent > holding + luck,",
        "True,",
        f"{TRADING_TESTS}/test_sanity.py::test_foresight_on_shuffled_returns_is_found",
        "T10b",
    ),
    Mutation(
        "returns are not shuffled",
        f"{TRADING}/sanity.py",
        "1 + generator.permutation(market.n_bars - 1)",
        "1 + np.arange(market.n_bars - 1)",
        f"{TRADING_TESTS}/test_sanity.py::test_shuffling_keeps_the_bars_and_loses_their_order",
        "T10b",
    ),
)
