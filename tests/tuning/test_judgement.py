import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.tuning.selection import (
    deflated_sharpe_ratio,
    effective_trials,
    moments_of,
    probability_of_backtest_overfitting,
    sharpe_ratios,
)
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns
from ml_pipeline.tuning.winner_statistics import NEEDS_TWO, JudgedTrial, judge, why_no_winner, winner_of

START = np.datetime64("2020-01-01", "ns")
DAY = np.timedelta64(1, "D")


def trials_of(returns, *, values=None, n_checkpoints=1, first_day=0):
    """A complete trial for each column of returns (T, N); valued by its growth."""
    time = START + (first_day + np.arange(len(returns))) * DAY
    values = np.log1p(returns).sum(axis=0) if values is None else values
    return [
        JudgedTrial(i, float(values[i]), None, ValidationReturns(time, column, 252.0), n_checkpoints=n_checkpoints)
        for i, column in enumerate(returns.T)
    ]


def noise(seed, n_trials=200, n_bars=500, mean=0.0):
    return 0.01 * np.random.default_rng(seed).standard_normal((n_bars, n_trials)) + mean


def test_the_figures_are_those_of_the_formulas():
    returns = noise(0, 30)
    returns[:, 4] += 0.002
    judged = judge(trials_of(returns))
    sharpes = sharpe_ratios(returns)
    assert judged.winner.number == 4
    assert judged.sharpe == pytest.approx(sharpes[4] * math.sqrt(252))
    assert judged.sharpe_variance == pytest.approx(sharpes.var(ddof=1) * 252)
    assert judged.dsr_of_trials == pytest.approx(
        deflated_sharpe_ratio(moments_of(returns[:, 4]), variance=sharpes.var(ddof=1), n_trials=30)
    )
    assert judged.dsr_of_checkpoints == pytest.approx(
        deflated_sharpe_ratio(moments_of(returns[:, 4]), variance=1 / 499, n_trials=30)
    )
    assert judged.dsr == min(judged.dsr_of_trials, judged.dsr_of_checkpoints)
    assert judged.pbo == probability_of_backtest_overfitting(returns).probability
    assert judged.n_effective == effective_trials(returns)
    assert (judged.n_trials, judged.n_with_returns, judged.n_checkpoints, judged.n_bars) == (30, 30, 30, 500)


def test_pruned_trials_and_those_that_never_traded_count_as_tried():
    returns = noise(1, 20)
    trials = trials_of(returns)
    pruned = [JudgedTrial(100 + i, 9.0, None, None, complete=False) for i in range(30)]
    idle = replace(
        trials[0], number=200, value=0.0, returns=ValidationReturns(trials[0].returns.time, np.zeros(500), 252.0)
    )
    alone, together = judge(trials), judge([*trials, *pruned, idle])
    assert together.winner.number == alone.winner.number  # the higher values are of pruned trials
    assert (together.n_trials, together.n_with_returns) == (51, 20)
    assert together.sharpe_variance == alone.sharpe_variance
    assert together.expected_maximum > alone.expected_maximum
    assert together.dsr < alone.dsr


def test_every_checkpoint_that_was_scored_counts():
    returns = noise(2, 20)
    once, often = (judge(trials_of(returns, n_checkpoints=n)) for n in (1, 40))
    assert (often.n_checkpoints, often.n_trials) == (800, 20)
    assert often.dsr_of_trials == once.dsr_of_trials
    assert often.dsr == often.dsr_of_checkpoints < once.dsr


def test_the_best_checkpoint_of_noise_is_no_evidence_where_trials_alone_would_say_so():
    # Each of 100 trials keeps the best of 20 independent checkpoints of noise: their Sharpe ratios are high and near
    # each other, so that counting trials alone finds evidence.
    generator = np.random.default_rng(0)
    said = []
    for _ in range(20):
        tries = 0.01 * generator.standard_normal((250, 100, 20))
        best = np.argmax(tries.mean(axis=0), axis=1)
        said.append(judge(trials_of(tries[:, np.arange(100), best], n_checkpoints=20), n_blocks=4))
    assert sum(each.dsr_of_trials >= 0.95 for each in said) >= 10
    assert {each.evidence for each in said} == {"no evidence"}


def test_one_trial_is_judged_alone():
    returns = noise(3, 1, mean=0.003)
    judged = judge(trials_of(returns))
    assert (judged.evidence, judged.expected_maximum, judged.expected_maximum_of_checkpoints) == ("evidence", 0, 0)
    assert math.isnan(judged.pbo)
    assert math.isnan(judged.n_effective)
    assert math.isnan(judged.sharpe_variance)


def test_without_returns_or_a_winner_there_is_no_judgement():
    assert judge([]) is None
    assert judge([JudgedTrial(0, 1.0, None, None)]) is None
    assert judge([replace(each, complete=False) for each in trials_of(noise(0, 3))]) is None
    assert judge([replace(each, value=math.nan) for each in trials_of(noise(0, 3))]) is None
    assert judge([replace(each, value=None) for each in trials_of(noise(0, 3))]) is None


@pytest.mark.parametrize("lost", ["returns", "variation"])
def test_a_winner_whose_record_says_nothing_is_no_evidence(lost):
    trials = trials_of(noise(4, 5))
    time = trials[0].returns.time
    returns = None if lost == "returns" else ValidationReturns(time, np.full(500, 0.001), 252.0)
    judged = judge([*trials, JudgedTrial(9, 99.0, None, returns)])
    assert (judged.winner.number, judged.evidence) == (9, "no evidence")
    assert math.isnan(judged.dsr)
    assert "the deflated Sharpe ratio of the winner is undefined" in judged.sentences()[0]
    described = json.loads(json.dumps(judged.described(), allow_nan=False))
    assert (described["dsr"], described["winner"], described["min_track_record"]) == (None, 9, None)


def test_a_losing_winner_is_no_evidence():
    judged = judge(trials_of(noise(5, 10, mean=-0.01)))
    assert judged.evidence == "no evidence"
    assert judged.min_track_record == math.inf
    assert "not above 0" in " ".join(judged.sentences())
    assert judged.described()["min_track_record"] is None


def test_the_best_of_equal_values_is_the_earliest():
    trials = trials_of(noise(0, 4), values=[1.0, 2.0, 2.0, 0.0])
    assert winner_of(trials).number == winner_of(trials[::-1]).number == 1


def test_records_of_other_bars_are_compared_where_all_have_some():
    returns = noise(6, 8, n_bars=400)
    shifted = [replace(each, number=each.number + 8) for each in trials_of(returns[100:], first_day=100)]
    judged = judge([*trials_of(returns), *shifted])
    assert judged.pbo == probability_of_backtest_overfitting(np.hstack([returns[100:], returns[100:]])).probability
    apart = [replace(each, number=each.number + 8) for each in trials_of(returns, first_day=1000)]
    judged = judge([*trials_of(returns), *apart])
    assert math.isnan(judged.pbo)
    assert not math.isnan(judged.dsr)


def test_trials_without_any_spread_are_judged():
    # The same record five times over: luck among them makes nothing, and the checkpoints still count.
    judged = judge(trials_of(np.repeat(noise(7, 1, mean=0.002), 5, axis=1)))
    assert judged.expected_maximum == pytest.approx(0, abs=1e-6)
    assert judged.dsr == judged.dsr_of_checkpoints < judged.dsr_of_trials


def test_only_correlated_trials_are_said_to_be_worth_fewer_independent_ones():
    common = 0.02 * np.random.default_rng(1).standard_normal((500, 1))  # correlation 0.8: 0.8 + 0.2 * 50 = 10.8
    correlated, independent = judge(trials_of(noise(0, 50) + common)), judge(trials_of(noise(0, 50)))
    assert correlated.n_effective == pytest.approx(10.8, abs=1.5)
    assert f"they are worth about {correlated.n_effective:.0f} independent trials" in correlated.sentences()[-1]
    assert round(independent.n_effective) == 50
    assert not any("correlated" in each for each in independent.sentences())


def test_the_sentences_say_the_verdict_first_and_every_figure():
    for seed, mean, verdict in ((0, 0.003, "Evidence"), (0, -0.002, "No evidence: the winner did no better")):
        judged = judge(trials_of(noise(seed, 50, mean=mean), n_checkpoints=7))
        sentences = judged.sentences()
        assert sentences[0].startswith(verdict)
        text = " ".join(sentences)
        for figure in (
            judged.sharpe,
            judged.expected_maximum,
            judged.dsr_of_trials,
            judged.dsr_of_checkpoints,
            judged.pbo,
        ):
            assert f"{figure:.2f}" in text
        assert "the best of 50" in text
        assert "all 350 checkpoints" in text
    lucky = next(each for each in (judge(trials_of(noise(seed, 50))) for seed in range(50)) if each.dsr > 0.6)
    assert "better than the luckiest of as many trials without skill, but not by enough" in lucky.sentences()[0]


# --- how often noise is taken for evidence, and skill found ---


def judge_fast(trials):
    return judge(trials, n_blocks=4)  # CSCV has no part in the verdict


@pytest.mark.slow
def test_noise_is_hardly_ever_taken_for_evidence():
    # Without costs the luckiest of 200 noise trials has a deflated Sharpe ratio of about 0.5: that is what it means.
    free = [judge_fast(trials_of(noise(seed))) for seed in range(50)]
    assert sum(each.evidence == "evidence" for each in free) == 0
    assert np.median([each.dsr for each in free]) == pytest.approx(0.45, abs=0.1)
    # Costs put the mean of all trials below 0, here by a Sharpe ratio of 0.8 a year.
    paying = [judge_fast(trials_of(noise(seed, mean=-0.0005))) for seed in range(50)]
    assert max(each.dsr for each in paying) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_correlated_noise_is_hardly_ever_taken_for_evidence(correlation):
    def study(seed):
        common = noise(seed + 1_000, 1)
        return math.sqrt(correlation) * common + math.sqrt(1 - correlation) * noise(seed)

    assert sum(judge_fast(trials_of(study(seed))).evidence == "evidence" for seed in range(50)) <= 1


@pytest.mark.slow
def test_skill_is_found():
    # 190 trials of noise and 10 with a Sharpe ratio of 3.2 a year over two years of days: 0.2 a day, 4.5 deviations.
    def study(seed):
        returns = noise(seed)
        returns[:, :10] += 0.002
        return judge_fast(trials_of(returns))

    judged = [study(seed) for seed in range(20)]
    assert all(each.winner.number < 10 for each in judged)
    assert sum(each.evidence == "evidence" for each in judged) >= 18


def _idle(trial, **how):
    still = ValidationReturns(trial.returns.time, np.zeros(len(trial.returns.time)), 252.0)
    return replace(trial, value=0.0, returns=still, **how)


def test_a_trial_that_never_traded_wins_nothing():
    first, second = trials_of(noise(3, 2), values=[-0.2, -0.1])
    idle = _idle(first, number=7)
    assert winner_of([first, idle, second]) is judge([first, idle]) is None
    assert "trial 7 has the highest value, 0, but it never traded" in why_no_winner([first, idle, second])
    assert "every trial that traded did worse" in why_no_winner([first, idle, second])
    assert "and neither did any other trial" in why_no_winner([idle, _idle(first, number=8)])
    assert (winner_of([first, second]), why_no_winner([first, second]), why_no_winner([])) == (second, None, None)


def test_of_equal_values_a_trial_that_traded_wins():
    (traded,) = trials_of(noise(3, 1), values=[0.0])
    assert winner_of([_idle(traded, number=-1), traded]) is traded


def test_no_figure_of_a_judgement_is_said_to_be_undefined():
    """Of two trials one never traded, so that the Sharpe ratios have no variance."""
    (traded,) = trials_of(noise(3, 1), values=[1.0])
    judged = judge([traded, _idle(traded, number=7)])
    assert math.isnan(judged.dsr)
    (sentence,) = [each for each in judged.sentences() if each.startswith("Deflated")]
    assert sentence == f"Deflated Sharpe ratio: undefined; {NEEDS_TWO}."
