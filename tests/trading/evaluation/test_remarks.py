import numpy as np

from ml_pipeline.trading.evaluation.remarks import RANGES, headlines, remarks
from ml_pipeline.trading.evaluation.report import as_json, results_table


def test_a_warning_where_the_agent_does_not_beat_random(evaluation_of, tiny_market):
    rising = np.linspace(100, 200, 40)
    assert "Warning" not in results_table(evaluation_of(tiny_market(rising), action=2))
    table = results_table(evaluation_of(tiny_market(rising[::-1]), action=2))
    assert "Warning: the agent (-49.4%) did not beat random policies that trade as much" in table


def test_the_remarks_say_what_the_figures_rest_on(evaluation_of, tiny_market):
    """All of 10,000 in an asset at 100 and 5 bps: 10,000 / 1.0005 are traded and 4.998 paid, and no cash is left."""
    rising = evaluation_of(tiny_market(np.linspace(100, 200, 40)), action=2)
    assert remarks(rising) == [
        "Annualized by 252 (daily bars, not on weekends: 252 a year).",
        RANGES,
        "Orders were filled at the next bar's open. The initial cash was 10,000; the agent paid 5 in costs, "
        "0.0% of it.",
        "Limits that bound the agent: cash in 1 bar.",
        "Against buy and hold, the agent has a beta of 1.00 ± 0.00 and an alpha of +0.0% ± 0.0% per year.",
        "0 of the 2 random policies earned as much as the agent.",
    ]
    falling = evaluation_of(tiny_market(np.linspace(200, 100, 40)), action=2, fee_bps=0, fill_at="close")
    assert "the close of the decision, optimistically" in remarks(falling)[2]
    assert [remarks(falling)[i] for i in (3, 5)] == [
        "No limit bound the agent.",
        "2 of the 2 random policies earned as much as the agent.",
    ]


# Stands still, triples, and stands still again: a short is ruined in the seventh of twelve bars.
TRIPLES = [100.0] * 6 + [300.0] * 6


def test_ruin_is_said_first_and_every_column_covers_the_same_bars(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market(TRIPLES), action=0, fee_bps=0)
    assert evaluation.endings == {"agent": "ruin", "buy_and_hold": None, "equal_weight": None}
    of_all = (evaluation.agent, evaluation.buy_and_hold, evaluation.equal_weight)
    assert {len(ledger["time"]) for ledger in of_all} == {7}
    assert all(len(ledger["time"]) <= 7 for ledger in evaluation.random)
    (ruin, few, guess) = headlines(evaluation)
    assert few.startswith("Only 7 bars: ")
    assert ruin == (
        "Ruin: the agent lost 100.0% of its money and its account was closed on 2024-01-07, in bar 7 of 12; all "
        "columns cover those 7 bars."
    )
    assert guess.startswith("Warning: the agent (-100.0%)")
    lines = results_table(evaluation).splitlines()
    assert lines[2] == ruin
    row = next(line for line in lines if line.startswith("Account closed"))
    assert "ruin, 2024-01-07" in row
    written = as_json(evaluation)
    assert list(written)[:2] == ["headlines", "account_closed"]
    assert written["headlines"][0] == ruin
    assert written["account_closed"]["agent"] == "ruin"
    assert (written["n_bars"], written["n_bars_of_split"], written["last_time"]) == (7, 12, "2024-01-07T00:00:00")


def test_a_baseline_that_is_ruined_names_its_own_period(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market([100.0] * 4 + [0.5] * 4), fee_bps=0)
    assert evaluation.endings == {"agent": None, "buy_and_hold": "ruin", "equal_weight": "ruin"}
    assert "Ruin: buy and hold lost 99.5% of its money by 2024-01-05; its column covers 5 of the 8 bars." in headlines(
        evaluation
    )
    assert "Account closed" in results_table(evaluation)


def test_a_margin_call_is_no_ruin_and_is_told_too(evaluation_of, tiny_market):
    # As in test_certify: covering takes all the cash, and the rest that is short cannot be paid for.
    market = tiny_market(close=[[100, 100], [100, 100], [250, 200], [250, 200], [250, 200]])
    actions = iter(np.array([[0, 2], [0, 2], [1, 2], [1, 2]]))
    rules = {"action_mode": "discrete", "fee_bps": 0, "borrow_bps_per_year": 252 * 100}
    evaluation = evaluation_of(market, lambda _: next(actions), **rules)
    assert evaluation.endings["agent"] == "margin call"
    assert headlines(evaluation)[0].startswith(
        "Margin call: the agent's cash did not cover a short and its account was closed on 2024-01-04, in bar 4 of 5;"
    )


def test_without_ruin_nothing_is_said_of_it(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market(np.linspace(100, 200, 40)), action=2)
    assert [sentence.split(":")[0] for sentence in headlines(evaluation)] == ["Only 1 trade"]
    assert "Account closed" not in results_table(evaluation)
    assert not any(as_json(evaluation)["account_closed"].values())


def test_a_lot_that_nothing_can_buy_is_told(evaluation_of, tiny_market):
    evaluation = evaluation_of(tiny_market([110.0, 100, 120, 130]), action=2, lot_size=1000)
    assert headlines(evaluation)[1:] == [
        "Nothing can be bought: a lot of 1,000 costs at least 100,000, but the account has 10,000; lower lot_size, or "
        "raise initial_cash."
    ]


def test_an_agent_whose_limits_leave_no_order_is_told_apart_from_one_that_wants_none(evaluation_of, tiny_market):
    rising = tiny_market(np.linspace(100, 200, 5))
    assert headlines(evaluation_of(rising))[1:] == ["The agent never traded: it stayed in cash."]
    kept = evaluation_of(rising, action=2, min_order=6_000, max_position=0.5)
    assert headlines(kept)[1:] == [
        "The agent never traded: limits prevented its orders (max_position in 1 bar, min_order in 1 bar)."
    ]


def test_limits_that_only_the_agent_has_are_named(evaluation_of, tiny_market):
    rising = tiny_market(np.linspace(100, 200, 5))
    named = "(max_position 0.25, min_cash 0.1)"
    sentence = f"Buy and hold invests the whole account: the agent's limits {named} bind only the agent."
    limited = evaluation_of(rising, action=2, max_position=0.25, min_cash=0.1)
    assert sentence in remarks(limited)
    assert sentence in results_table(limited)
    assert "whole account" not in results_table(evaluation_of(rising, action=2))
