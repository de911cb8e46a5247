"""The benchmark of learning: what it computes, and that it goes on where it was stopped."""

import doctest
import json

import numpy as np
import pytest

from benchmarks import learning, learning_contestants, learning_page
from benchmarks.learning_contestants import CONTESTANTS, OURS, THEIRS
from benchmarks.learning_jobs import JOBS


@pytest.mark.parametrize("module", [learning_contestants, learning_page], ids=lambda module: module.__name__)
def test_its_examples_hold(module):
    tried = doctest.testmod(module)
    assert tried.failed == 0
    assert tried.attempted


def runs_of(who, scores, **others):
    return [
        {
            "job": "CartPole-v1", "who": who, "seed": seed, "total_steps": 100_000, "deterministic": score,
            "stochastic": score, "last": None, **others,
        }
        for seed, score in enumerate(scores)
    ]  # fmt: skip


def test_the_table_gives_interquartile_means_intervals_and_the_difference():
    runs = runs_of(OURS, [1.0, 2.0, 3.0, 4.0, 100.0]) + runs_of(THEIRS, [7.0, 7.0])
    # Without the lowest and the highest (2 + 3 + 4) / 3 = 3; mean 22, standard error 43.6 / sqrt(5) = 19.5.
    deterministic, stochastic = learning_page.table(runs).splitlines()[2:]  # no training had an episode at its end
    assert deterministic.startswith("| CartPole-v1 | 100,000 | 5/2 | 100 episodes, deterministic actions | 3.0 [")
    assert "| 7.0 [7.0, 7.0] | +15.0 ± 19.5 | " in deterministic
    assert "100 episodes, sampled actions" in stochastic


def test_the_page_has_the_jobs_that_both_have_learned():
    both = runs_of(OURS, [1.0, 2.0]) + runs_of(THEIRS, [3.0, 4.0])
    begun = runs_of(OURS, [5.0], job="Hopper-v5")
    assert learning_page.compared(both + begun) == both


def test_one_run_of_one_contestant_is_shown_without_a_comparison():
    (line, _) = learning_page.table(runs_of(OURS, [5.0])).splitlines()[2:]
    assert line.endswith("| 5.0 | - | - | - |")


def test_chance_is_that_of_all_ways_to_shuffle():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=4), rng.normal(size=4) + 1.0
    both = np.concatenate([ours, theirs])
    picks = [[i for i in range(8) if bits >> i & 1] for bits in range(256)]
    means = [abs(both[pick].mean() - np.delete(both, pick).mean()) for pick in picks if len(pick) == 4]
    expected = np.mean([mean >= abs(ours.mean() - theirs.mean()) - 1e-12 for mean in means])
    assert learning_page.chance(ours, theirs) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("who", [OURS, THEIRS])
def test_drawn_actions_are_drawn_and_the_likeliest_are_not(who):
    if who == THEIRS:
        pytest.importorskip("stable_baselines3")
    trained = CONTESTANTS[who](JOBS["CartPole-v1"], 0, 256)
    for act, n_different in ((trained.act, 1), (trained.draw, 2)):
        assert len({int(act(np.zeros(4, np.float32))) for _ in range(50)}) == n_different


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_what_is_finished_is_not_done_again_and_a_line_cut_short_is(tmp_path, capsys):
    pytest.importorskip("stable_baselines3")
    tiny = ["--jobs", "CartPole-v1", "--scale", "0.002", "--output", str(tmp_path)]
    learning.main([*tiny, "--seeds", "1"])
    runs = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(runs[:-5])
    assert capsys.readouterr().out.count("seed 100") == 2
    learning.main([*tiny, "--seeds", "2"])
    out = capsys.readouterr().out
    assert (out.count("seed 100"), out.count("seed 101")) == (1, 2)
    again = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert again[0] == runs.splitlines()[0]  # as it was
    done_anew = {(run["who"], run["seed"]) for run in map(json.loads, again)}
    assert done_anew == {(who, seed) for who in (OURS, THEIRS) for seed in (100, 101)}
    assert len(again) == 4
    assert {"table.md", "curves.png", "runs.jsonl"} == {path.name for path in tmp_path.iterdir()}
