import math
from itertools import combinations, pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.selection import (
    RecordMoments,
    deflated_sharpe_ratio,
    effective_trials,
    expected_maximum_sharpe,
    minimum_track_record_length,
    moments_of,
    null_variance,
    probabilistic_sharpe_ratio,
    probability_of_backtest_overfitting,
    sharpe_ratios,
)

# Bailey and López de Prado 2014, "A numerical example": the best of 100 trials has 2.5 a year over 1,250 days of which
# 250 make a year, the trials' annualized Sharpe ratios have variance 1/2, its returns skewness -3 and kurtosis 10.
EXAMPLE = RecordMoments(2.5 / math.sqrt(250), -3.0, 10.0, 1250)


def twelve_trials():
    """Returns (400, 12) with skewness and fat tails, by arithmetic alone, so that they are the same everywhere."""
    t, k = np.meshgrid(np.arange(400), np.arange(12), indexing="ij")
    uniform = ((t * t * 31 + k * 7919 + t * (k + 3) * 104729) % 1009) / 1009 - 0.5
    return 0.08 * uniform * np.abs(uniform) + 0.0003 * (k - 4) + 0.03 * (uniform > 0.49) * (k % 3 - 1)


def test_the_papers_example():
    assert expected_maximum_sharpe(0.5 / 250, 100) == pytest.approx(0.1132, abs=5e-5)
    assert deflated_sharpe_ratio(EXAMPLE, variance=0.5 / 250, n_trials=100) == pytest.approx(0.9004, abs=5e-5)
    # "Should the strategy have been selected from 46 trials, the DSR would be about 0.95."
    assert deflated_sharpe_ratio(EXAMPLE, variance=0.5 / 250, n_trials=46) == pytest.approx(0.9505, abs=5e-4)


def test_another_librarys_figures():
    # skfolio 1.12.2, with sharpes = returns.mean(0) / returns.std(0, ddof=1) and best = returns[:, 11]:
    #   skew(best), kurtosis(best); probabilistic_sharpe_ratio(best), (best, benchmark_sharpe_ratio=0.1);
    #   deflated_sharpe_ratio(best, sharpes), (returns[:, 1], sharpes);
    #   expected_max_sharpe_ratio(n, 0.1) for n in (2, 10, 100, 1000, 37.5)
    returns = twelve_trials()
    sharpes = sharpe_ratios(returns)
    best, second = moments_of(returns[:, 11]), moments_of(returns[:, 1])
    assert (np.argmax(sharpes), best.sharpe) == (11, pytest.approx(0.15822604, abs=1e-8))
    assert best.skewness == pytest.approx(0.9866957789768113, rel=1e-12)
    assert best.kurtosis == pytest.approx(7.799122865450806, rel=1e-12)
    assert probabilistic_sharpe_ratio(best) == pytest.approx(0.999605923216556, rel=1e-12)
    assert probabilistic_sharpe_ratio(best, 0.1) == pytest.approx(0.8916448533213741, rel=1e-12)
    variance = float(sharpes.var(ddof=1))
    of_best, of_second = (deflated_sharpe_ratio(each, variance=variance, n_trials=12) for each in (best, second))
    assert of_best == pytest.approx(0.16622309190529072, rel=1e-12)
    assert of_second == pytest.approx(4.4336464752377753e-13, rel=1e-9)
    expected = [0.05197553442805939, 0.157459830134575, 0.2530602893201685, 0.32551215136527234, 0.21638602732611956]
    assert [expected_maximum_sharpe(0.01, n) for n in (2, 10, 100, 1000, 37.5)] == pytest.approx(expected, rel=1e-12)


def test_another_library_where_it_is_installed():
    measures = pytest.importorskip(
        "skfolio.measures", reason="skfolio is not installed; its figures are in the test above"
    )
    generator = np.random.default_rng(3)
    for degrees in (3, 30):
        returns = 0.01 * generator.standard_t(degrees, (300, 40))
        sharpes = sharpe_ratios(returns)
        best = returns[:, np.argmax(sharpes)]
        ours = deflated_sharpe_ratio(moments_of(best), variance=float(sharpes.var(ddof=1)), n_trials=40)
        assert ours == pytest.approx(measures.deflated_sharpe_ratio(best, sharpes), rel=1e-9)
        assert probabilistic_sharpe_ratio(moments_of(best)) == pytest.approx(
            measures.probabilistic_sharpe_ratio(best), rel=1e-9
        )


@pytest.mark.parametrize("n_trials", [10, 100, 1000])
def test_the_expected_maximum_is_that_of_simulated_noise(n_trials):
    generator = np.random.default_rng(n_trials)
    luckiest = 0.3 * generator.standard_normal((4_000, n_trials)).max(axis=1)
    assert expected_maximum_sharpe(0.09, n_trials) == pytest.approx(luckiest.mean(), rel=0.03)


def test_noise_spreads_as_the_null_variance_says_whatever_its_tails():
    generator = np.random.default_rng(0)
    for returns in (generator.standard_normal((500, 4_000)), generator.exponential(size=(500, 4_000)) - 1):
        assert sharpe_ratios(returns).var() == pytest.approx(null_variance(500), rel=0.08)


@given(st.floats(0.01, 0.5), st.floats(-2, 2), st.floats(0, 8), st.integers(50, 5000), st.floats(-0.1, 0.005))
def test_a_record_as_long_as_the_minimum_reaches_the_level(sharpe, skewness, more, n_bars, benchmark):
    record = RecordMoments(sharpe, skewness, skewness**2 + 1 + more, n_bars)  # no law has a lower kurtosis
    length = minimum_track_record_length(record, benchmark, level=0.95)
    # the probability at that length, which is no whole number of bars
    assert probabilistic_sharpe_ratio(record._replace(n_bars=max(3.0, length)), benchmark) >= 0.95 - 1e-9
    if length > 4:
        assert probabilistic_sharpe_ratio(record._replace(n_bars=length - 0.5), benchmark) < 0.95


def test_the_minimum_track_record_by_hand():
    # 1 + (1 + 0.5 * 0.1^2) (1.6449 / 0.1)^2 = 1 + 1.005 * 270.55 = 272.9, for normal returns of Sharpe ratio 0.1 a bar
    assert minimum_track_record_length(RecordMoments(0.1, 0.0, 3.0, 10)) == pytest.approx(272.9, abs=0.05)
    assert minimum_track_record_length(RecordMoments(-0.1, 0.0, 3.0, 10)) == math.inf
    with pytest.raises(UserError, match=r"level must be between 0\.5 and 1, but got 95"):
        minimum_track_record_length(EXAMPLE, level=95)


@given(st.floats(0, 4), st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_trials_never_deflate_less(variance, some, others):
    fewer, more = sorted((some, others))
    assert expected_maximum_sharpe(variance, fewer) <= expected_maximum_sharpe(variance, more)


def test_one_trial_is_not_deflated():
    assert expected_maximum_sharpe(0.5, 1) == 0
    assert deflated_sharpe_ratio(EXAMPLE, variance=0.0, n_trials=1) == probabilistic_sharpe_ratio(EXAMPLE)


def test_what_is_undefined_is_nan():
    constant = moments_of(np.full(100, 0.1))
    assert constant.n_bars == 100
    assert math.isnan(constant.sharpe)
    undefined = [
        probabilistic_sharpe_ratio(constant),
        minimum_track_record_length(constant),
        deflated_sharpe_ratio(constant, variance=0.1, n_trials=3),
        deflated_sharpe_ratio(EXAMPLE, variance=math.nan, n_trials=3),
        probabilistic_sharpe_ratio(EXAMPLE._replace(n_bars=2)),
        probabilistic_sharpe_ratio(RecordMoments(1.0, 3.0, 3.0, 100)),  # no law is so skewed: a negative variance
        moments_of(np.array([0.1])).sharpe,
        moments_of(np.empty(0)).sharpe,
        null_variance(1),
        effective_trials(np.zeros((50, 3))),
        effective_trials(np.random.default_rng(0).normal(size=(50, 1))),
        *sharpe_ratios(np.full((10, 2), 0.3)),
        *sharpe_ratios(np.zeros((1, 2))),
    ]
    assert [each for each in undefined if not math.isnan(each)] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: moments_of(np.array([0.1, math.nan])), "Returns must be finite numbers, but bar 1 has nan"),
        (
            lambda: probability_of_backtest_overfitting(np.array([[0.0, 1.0], [math.inf, 0.0]])),
            "bar 1 of trial 0 has inf; leave such trials out",
        ),
        (lambda: moments_of(np.zeros((3, 2))), r"Returns must be of shape \(bars,\), but got \(3, 2\)"),
        (lambda: sharpe_ratios(np.zeros(3)), r"Returns must be of shape \(bars, trials\), but got \(3,\)"),
        (lambda: expected_maximum_sharpe(0.1, 0), "n_trials must be at least 1, but got 0"),
        (lambda: expected_maximum_sharpe(-0.1, 5), "variance of Sharpe ratios must be 0 or more"),
        (lambda: probability_of_backtest_overfitting(np.zeros((50, 2)), n_blocks=5), "n_blocks must be an even number"),
    ],
)
def test_what_cannot_be_used_is_said(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_trials_that_are_alike_count_as_few():
    generator = np.random.default_rng(1)
    common, own = generator.standard_normal((2_000, 1)), generator.standard_normal((2_000, 50))
    for correlation in (0.0, 0.3, 0.9):
        returns = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own
        wanted = correlation + (1 - correlation) * 50
        assert effective_trials(returns) == pytest.approx(wanted, abs=2)
        # the mean of all pairs, one by one
        matrix = np.corrcoef(returns.T)
        mean = float(np.mean([matrix[i, j] for i, j in combinations(range(50), 2)]))
        assert effective_trials(returns, 80) == pytest.approx(max(mean, 0) + (1 - max(mean, 0)) * 80, rel=1e-9)
    assert effective_trials(np.column_stack([common, common])) == pytest.approx(1)
    assert effective_trials(np.column_stack([common, -common])) == 2  # opposite ones are no more than two


# --- the probability of backtest overfitting ---


def overfitting_by_the_book(returns, n_blocks):
    """CSCV one combination and one trial at a time, by lists and sorting: (probability, logits)."""
    n_trials = returns.shape[1]
    edges = np.linspace(0, len(returns), n_blocks + 1).astype(int)
    assert len({*np.diff(edges)}) == 1  # equal blocks, as in the paper
    blocks = [list(range(start, stop)) for start, stop in pairwise(edges)]

    def performance(trial, rows):
        values = [float(returns[row, trial]) for row in rows]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        return mean / deviation

    logits = []
    for chosen in combinations(range(n_blocks), n_blocks // 2):
        inside = [row for i in chosen for row in blocks[i]]
        outside = [row for i in range(n_blocks) if i not in chosen for row in blocks[i]]
        best = max(range(n_trials), key=lambda trial: performance(trial, inside))
        order = sorted(range(n_trials), key=lambda trial: performance(trial, outside))
        rank = 1 + order.index(best)
        relative = rank / (n_trials + 1)
        logits.append(math.log(relative) - math.log(1 - relative))
    return sum(logit <= 0 for logit in logits) / len(logits), logits


@pytest.mark.parametrize(("n_bars", "n_blocks", "n_trials"), [(60, 4, 2), (80, 8, 7), (120, 6, 30)])
def test_cscv_is_that_of_a_slow_implementation(n_bars, n_blocks, n_trials):
    generator = np.random.default_rng(n_trials)
    returns = 0.01 * generator.standard_t(4, (n_bars, n_trials)) + 0.001 * generator.standard_normal(n_trials)
    ours = probability_of_backtest_overfitting(returns, n_blocks=n_blocks)
    probability, logits = overfitting_by_the_book(returns, n_blocks)
    assert (ours.probability, ours.n_blocks) == (probability, n_blocks)
    np.testing.assert_allclose(np.sort(ours.logits), np.sort(logits), atol=1e-12)


def test_sixteen_blocks_give_12870_halves_and_as_many_as_the_bars_allow_otherwise():
    returns = np.random.default_rng(0).normal(size=(500, 3))
    assert len(probability_of_backtest_overfitting(returns).logits) == 12_870
    blocks = [probability_of_backtest_overfitting(returns[:n]).n_blocks for n in (80, 79, 59, 20)]
    assert blocks == [16, 14, 10, 4]
    assert math.isnan(probability_of_backtest_overfitting(returns[:19]).probability)
    assert math.isnan(probability_of_backtest_overfitting(returns[:, :1]).probability)


def test_a_trial_that_is_better_everywhere_is_not_overfitted():
    returns = np.random.default_rng(0).normal(size=(400, 20))
    returns[:, 7] += 1.0
    found = probability_of_backtest_overfitting(returns)
    assert found.probability == 0
    assert found.logits == pytest.approx(math.log(20))  # always the best of 20: w = 20/21


def test_a_trial_that_lives_on_one_stretch_is_overfitted():
    # Each of 8 trials earns on its own eighth and loses on all others: what is best in one half is not in the other.
    returns = np.random.default_rng(0).normal(-0.2, 0.1, size=(400, 8))
    for trial in range(8):
        returns[50 * trial : 50 * (trial + 1), trial] += 3.0
    assert probability_of_backtest_overfitting(returns, n_blocks=8).probability == 1


@pytest.mark.slow
def test_of_noise_half_the_choices_are_overfitted():
    found = [
        probability_of_backtest_overfitting(np.random.default_rng(seed).normal(size=(320, 30)), n_blocks=8).probability
        for seed in range(100)
    ]
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)


def test_ties_are_shared():
    returns = np.random.default_rng(5).normal(size=(80, 3))
    twice = np.repeat(returns, 2, axis=1)
    # Of 3 trials the ranks are 1, 2, 3 of 4; of each twice, the shared ones 1.5, 3.5, 5.5 of 7: below, at and above the
    # median as before.
    once, doubled = (probability_of_backtest_overfitting(each, n_blocks=4) for each in (returns, twice))
    assert doubled.probability == once.probability
    relative = 1 / (1 + np.exp(-doubled.logits))
    assert {round(float(each), 6) for each in relative * 7} <= {1.5, 3.5, 5.5}
    assert median(doubled.logits) != 0
    all_alike = np.repeat(returns[:, :1], 5, axis=1)
    assert math.isnan(probability_of_backtest_overfitting(all_alike).probability)


def test_a_trial_that_never_trades_ranks_as_cash():
    generator = np.random.default_rng(2)
    losing = generator.normal(-1.0, 0.3, size=(80, 4))
    assert probability_of_backtest_overfitting(np.column_stack([losing, np.zeros(80)])).probability == 0


def test_the_order_and_the_scale_of_trials_do_not_matter():
    returns = np.random.default_rng(3).normal(0.02, 1, size=(160, 12))
    usual = probability_of_backtest_overfitting(returns, n_blocks=8).probability
    mixed = returns[:, np.random.default_rng(4).permutation(12)] * 1e-4
    assert probability_of_backtest_overfitting(mixed, n_blocks=8).probability == usual


def test_nothing_handed_in_is_changed():
    returns = twelve_trials()
    returns.flags.writeable = False
    probability_of_backtest_overfitting(returns)
    effective_trials(returns)
    moments_of(returns[:, 0])
