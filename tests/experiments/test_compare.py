"""Runs beside each other, from folders that were written by hand."""

import json
import os
from dataclasses import replace

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.experiments.compare import read_comparison, write_figure
from ml_pipeline.experiments.compare_config import parse_compare
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.train_config import TrainConfig


def write_run(folder, returns=(1.0, 2.0), *, scores=(), ppo=None, **run):
    """A run folder with an iteration of 1,000 steps, in two seconds, for each return."""
    folder.mkdir(parents=True)
    config = TrainConfig()
    run = replace(config.run, **{"env_id": "Mine-v0", "checkpoint_dir": folder, **run})
    write_yaml(folder / "config.yaml", flatten(replace(config, run=run, ppo=replace(config.ppo, **ppo or {}))))
    lines = []
    for i, episode_return in enumerate(returns):
        line = {"time/global_step": 1000 * (i + 1), "time/learning_s": 2.0}
        line |= {"rollout/episode_return": episode_return, "rollout/n_completed_episodes": 1}
        lines.append(line | ({"eval/score": scores[i]} if i < len(scores) else {}))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_a_row_tells_a_run(tmp_path):
    one = write_run(tmp_path / "one", scores=(5.0, 4.0), seed=3)
    FolderClaim(one).end("finished", None, global_step=2000, iterations=2, best_score=5.0)
    two = write_run(tmp_path / "two", returns=(1.0, 2.0, 8.0), ppo={"gamma": 0.9})
    header, line, *rows = read_comparison([one, two]).table().splitlines()
    assert header.split("  ")[0].strip() == "run"
    assert set(line) == {"-"}
    assert rows[0].split() == ["one", "3", "2,000", "5", "4", "mean", "return", "2", "500", "finished"]
    assert rows[1].split() == ["two", "0", "3,000", "-", "-", "mean", "return", "8", "500", "-"]
    assert rows[2:] == ["", "gamma: 0.99 in one; 0.9 in two"]


def test_runs_that_differ_by_their_seed_alone_are_a_group(tmp_path):
    folders = [
        write_run(tmp_path / f"base-seed{seed}", (float(seed),), seed=seed, n_envs=4, n_workers=seed) for seed in (1, 3)
    ]
    other = write_run(tmp_path / "other", (7.0,), n_envs=2)
    comparison = read_comparison([folders[0], other, folders[1]])
    assert [[run.name for run in group] for group in comparison.groups] == [["base-seed1", "base-seed3"], ["other"]]
    # Returns 1 and 3: 2 ± 12.706 * sqrt(2) / sqrt(2).
    assert comparison.remarks() == [
        "base (2 runs): return of the last 5 % 2 ± 12.71 (mean and 95 % interval)",
        "n_envs: 4 in base (2 runs); 2 in other",
    ]
    (axes,) = comparison.figure().axes
    assert axes.get_legend().get_title().get_text() == "return, last 5 %"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["base (2 runs): n_envs 4 | 2", "other: n_envs 2 | 7"]


def test_many_differences_are_told_in_words_alone(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", n_envs=2, ppo={"gamma": 0.9, "hidden_sizes": (8, 9), "normalize_obs": False})
    comparison = read_comparison([one, two])
    assert "hidden_sizes: 64 64 in one; 8 9 in two" in comparison.remarks()
    assert "normalize_obs: true in one; false in two" in comparison.remarks()
    assert [text.get_text() for text in comparison.figure().axes[0].get_legend().get_texts()] == ["one | 2", "two | 2"]


def test_names_keep_what_they_mean_without_the_time_and_the_random_end(tmp_path):
    def names(*folders):
        paths = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate(folders)]
        return [run.name for run in read_comparison(paths).runs]

    assert names("slow-seed1-20261122-142033-6b2883", "fast-20261122-142033") == ["slow-seed1", "fast"]
    assert names("slow-seed2-20261122-142033-6b2883", "slow-seed2-20261123-142033-000000") == [
        "slow-seed2-20261122-142033",
        "slow-seed2-20261123-142033",
    ]
    same = ["a-20261122-142033-6b2883", "a-20261122-142033-6b2884"]
    assert names(*same) == same


def test_scores_are_drawn_with_their_unit(tmp_path):
    runs = [write_run(tmp_path / "one", scores=(5.0,)), write_run(tmp_path / "market", env_id=None, scores=(0.5,))]
    axes = read_comparison(runs).figure().axes
    labels = [each.get_ylabel() for each in axes if each.get_ylabel().startswith("score")]
    assert labels == ["score of evaluations\n(mean return)", "score of evaluations\n(log return)"]


def test_different_tasks_are_said_and_drawn_apart(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", (500.0,), env_id=None)
    comparison = read_comparison([one, two])
    assert comparison.remarks()[-1] == (
        "These runs learned different tasks (Mine-v0, trading on the built-in market): scores and returns are not "
        "comparable."
    )
    assert [axes.get_title("left") for axes in comparison.figure().axes] == [
        "Mine-v0",
        "trading on the built-in market",
    ]


def test_the_same_seed_twice_is_said(tmp_path):
    folders = [write_run(tmp_path / name, seed=4) for name in ("a", "b")]
    assert read_comparison(folders).remarks()[-1] == (
        "a, b have the same settings and seed 4: together they show no more than one of them."
    )


def test_a_run_that_is_being_written_is_read_as_far_as_it_is(tmp_path):
    whole = write_run(tmp_path / "x-seed1", (1.0, 2.0, 3.0), seed=1)
    begun = write_run(tmp_path / "x-seed2", (1.0, 2.0), seed=2)
    with (begun / "metrics.jsonl").open("a") as file:
        file.write('{"time/global_step": 3000, "rollout/epi')
    nothing = write_run(tmp_path / "x-seed3", (), seed=3)
    comparison = read_comparison([whole, begun, nothing])
    assert comparison.remarks()[-1] == "x-seed3 has not finished an iteration yet."
    (axes,) = comparison.figure(smooth=1).axes
    assert [line.get_xdata()[-1] for line in axes.lines] == [3000, 2000, 2000]  # two runs, then what they share
    with pytest.raises(UserError, match="There is nothing to draw yet"):
        read_comparison([nothing]).figure()


def test_settings_of_an_older_version_are_filled_up_with_defaults(tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", seed=1)
    settings = (two / "config.yaml").read_text().splitlines()
    (two / "config.yaml").write_text("\n".join(line for line in settings if not line.startswith("memory")) + "\n")
    assert len(read_comparison([one, two]).groups) == 1


def test_runs_of_one_name_are_named_by_their_paths(tmp_path, monkeypatch):
    folders = [write_run(tmp_path / where / "run", seed=i) for i, where in enumerate("ab")]
    monkeypatch.chdir(tmp_path)
    names = [run.name for run in read_comparison([folder.relative_to(tmp_path) for folder in folders]).runs]
    assert [name.replace("\\", "/") for name in names] == ["a/run", "b/run"]


def test_what_is_no_run_is_one_sentence(tmp_path):
    run = write_run(tmp_path / "run")
    for folders, sentence in (
        ([], "RUN is missing; name the folders"),
        ([run, tmp_path], "is not a run folder: .*metrics.jsonl is missing"),
        ([run, run / ".." / "run"], "is named twice; name each run once"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_comparison(folders)
    (run / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"config\.yaml cannot be read: No such file"):
        read_comparison([run])


@pytest.mark.parametrize("name", ["curve.png", "curve.SVG", "curve.pdf"])
def test_a_picture_is_written(name, tmp_path):
    comparison = read_comparison([write_run(tmp_path / "run")])
    write_figure(comparison.figure(by="time"), tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1000


def test_a_picture_that_cannot_be_written_is_one_sentence(tmp_path):
    figure = read_comparison([write_run(tmp_path / "run")]).figure()
    for folder in ("run/metrics.jsonl", "new"):
        with pytest.raises(UserError, match=r"curve.png cannot be written: .*; choose another"):
            write_figure(figure, tmp_path / folder / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["a", "--by", "days"], "--by must be steps or time"),
        (["a", "--smooth", "0"], "smooth must be a whole number of at least 1"),
        (["a", "--output", "curve.bmp"], r'output must be a \.png, \.svg or \.pdf file, but got "curve.bmp"'),
        (["a", "--smoth", "2"], 'Unknown flag --smoth. Did you mean "--smooth"'),
    ],
)
def test_a_bad_flag_is_one_sentence(args, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_compare(args, prog="compare")


def test_runs_are_named_before_flags():
    config = parse_compare(["a", "b", "--by", "time"], prog="compare")
    assert ([str(run) for run in config.runs], config.by) == (["a", "b"], "time")


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "state.json"])
def test_a_pipe_in_a_run_folder_is_refused_and_not_waited_for(tmp_path, name):
    (tmp_path / "config.yaml").write_text("seed: 1")
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} (cannot be read: it is not a regular file|is missing)"):
        read_comparison([tmp_path])


@pytest.mark.timeout(20)
def test_lines_that_no_run_writes_are_left_out(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    rows = [
        '{"time/global_step": 1e400, "eval/score": 1}',
        f'{{"time/global_step": 1{"0" * 400}}}',
        '{"a": ' * 100_000,
        '{"time/global_step": 5, "eval/score": "high", "time/acting_s": [1], "rollout/episode_return": 2}',
        f'{{"time/global_step": 6, "eval/score": 1{"0" * 400}, "rollout/n_completed_episodes": {{}}}}',
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (run,) = read_comparison([tmp_path]).runs
    assert run.curve.steps[1:].tolist() == [5.0, 6.0]
    assert run.curve.returns[1] == 2.0
