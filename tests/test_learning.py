"""The benchmark of learning: what it computes, and that it goes on where it was stopped."""

import doctest

import pytest

from benchmarks import learning


def test_its_examples_hold():
    assert doctest.testmod(learning).failed == 0


def test_the_table_gives_interquartile_mean_interval_mean_and_deviation():
    scores = {learning.OURS: [1.0, 2.0, 3.0, 4.0, 100.0], learning.THEIRS: [7.0]}
    runs = [
        {"job": "CartPole-v1", "who": who, "seed": seed, "total_steps": 100_000, "score": score}
        for who, of_one in scores.items()
        for seed, score in enumerate(of_one)
    ]
    # Without the lowest and the highest (2 + 3 + 4) / 3 = 3; mean 22, deviation 43.6.
    (line,) = learning.table(runs).splitlines()[2:]
    assert line.startswith("| CartPole-v1 | 100,000 | 5/1 | 3.0 [")
    assert line.endswith("], 22.0 ± 43.6 | 7.0 [7.0, 7.0], 7.0 | 500 |")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_what_is_finished_is_not_done_again_and_a_line_cut_short_is(tmp_path, capsys):
    pytest.importorskip("stable_baselines3")
    tiny = ["--jobs", "CartPole-v1", "--scale", "0.002", "--output", str(tmp_path)]
    learning.main([*tiny, "--seeds", "1"])
    runs = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(runs[:-5])
    assert capsys.readouterr().out.count("seed 0") == 2
    learning.main([*tiny, "--seeds", "2"])
    out = capsys.readouterr().out
    assert (out.count("seed 0"), out.count("seed 1")) == (1, 2)
    again = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert again[0] == runs.splitlines()[0]  # as it was
    assert [line.partition('"score"')[0] for line in again[:2]] == [
        line.partition('"score"')[0] for line in runs.splitlines()
    ]
    assert len(again) == 4
    assert {"table.md", "curves.png", "runs.jsonl"} == {path.name for path in tmp_path.iterdir()}
