"""Flags win over the file, the file over defaults; nothing heavy is imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import build, flatten, hints_of
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_flags_everything_has_its_default(in_tmp):
    start = parse_train_start([])
    assert start.config == TrainConfig()
    assert start.checkpoint is None


def test_flags_win_over_the_file_and_the_file_over_defaults(in_tmp):
    Path("run.json").write_text(json.dumps({"n-envs": 8, "gamma": 0.5}))
    start = parse_train_start(["--gamma", "0.9", "--config", "run.json"])
    assert start.config == TrainConfig(run=RunConfig(n_envs=8), ppo=PPOConfig(gamma=0.9))


def test_the_spelling_of_the_zoo_counts_in_flags_and_files_and_the_last_one_wins(in_tmp):
    Path("run.yaml").write_text("learning-rate: 1.0e-3\nlearning_rate_schedule: cosine\nclip_range: lin_0.3")
    start = parse_train_start(["--config", "run.yaml", "--learning-rate", "lin_3e-4"])
    assert start.config.ppo == PPOConfig(
        learning_rate=3e-4, learning_rate_schedule="linear", clip_range=0.3, clip_range_schedule="linear"
    )
    with pytest.raises(UserError, match='--learning-rate must be a number, but got "lin_fast"'):
        parse_train_start(["--learning-rate", "lin_fast"])
    Path("run.yaml").write_text("ent_coef: lin_0.1\nent_coef_schedule: cosine")
    with pytest.raises(
        UserError, match=r"run\.yaml: ent_coef is lin_0\.1, which is linear, but ent_coef_schedule is cos"
    ):
        parse_train_start(["--config", "run.yaml"])


@pytest.mark.parametrize(
    ("lower", "upper"), [("iterations: 7", "--total-timesteps=1e6"), ("total_timesteps: 7", "--iterations=9")]
)
def test_one_length_of_training_replaces_the_other(in_tmp, lower, upper):
    Path("run.yaml").write_text(lower)
    run = parse_train_start(["--config", "run.yaml", upper]).config.run
    assert (run.iterations, run.total_timesteps) in {(None, 1_000_000), (9, None)}


def test_paths_do_not_depend_on_the_working_directory(in_tmp):
    assert parse_train_start(["--checkpoint-dir", "runs/a"]).config.run.checkpoint_dir == in_tmp / "runs" / "a"


def test_a_flag_of_the_market_with_another_environment_is_told(in_tmp):
    with pytest.raises(UserError) as told:
        parse_train_start(["--env-id", "CartPole-v1", "--data", "prices.csv"])
    expected = "--data is for trading, but --env-id is CartPole-v1; use one of them."
    assert str(told.value) == expected


def test_episodes_of_evaluation_are_no_setting_of_a_market(in_tmp):
    with pytest.raises(UserError, match="--eval-episodes is for environments of --env-id"):
        parse_train_start(["--eval-episodes", "3"])
    assert parse_train_start(["--eval-episodes", "3", "--env-id", "CartPole-v1"]).config.run.eval_episodes == 3


def test_every_setting_has_a_sentence_in_the_help(capsys):
    with pytest.raises(SystemExit):
        parse_train_start(["--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    for name in (*hints_of(TrainConfig), "config", "resume"):
        after = re.split(rf" --{name.replace('_', '-')}[ ,]", shown, maxsplit=1)[1]  # other helps name it, too
        sentence, _, _ = after.partition(" (default: ")
        assert sentence.endswith("."), name
        assert len(sentence.split()) > 4, name


def test_help_shows_the_settings_that_people_change(capsys):
    """As many as fit on two screens; the messages about a flag name the help that lists every flag."""
    with pytest.raises(SystemExit):
        parse_train_start(["--help"])
    shown = capsys.readouterr().out
    usual = [name for names in TrainConfig.USUAL.values() for name in names]
    assert len(usual) == 20
    assert re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE).count("--help-all") == 1
    assert {*re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)} == {"--help-all", *map(flag_of, usual)}
    with pytest.raises(UserError, match="--help-all lists every flag"):
        parse_train_start(["--xyz"])


def test_iterations_have_the_name_that_the_first_version_gave_them(in_tmp):
    assert parse_train_start(["--num-episodes", "7"]).config.run.iterations == 7
    assert parse_train_start(["--num_episodes=7"]).config.run.iterations == 7
    (in_tmp / "settings.yaml").write_text("num_episodes: 7\n")
    assert parse_train_start(["--config", "settings.yaml"]).config.run.iterations == 7


@pytest.mark.long
def test_every_setting_can_be_given_as_a_flag():
    for name, default in flatten(TrainConfig()).items():
        values = default if isinstance(default, list) else [default]
        words = ["none" if value is None else str(value) for value in values] or ["none"]
        argv = [flag_of(name), *words]
        if isinstance(default, bool):
            argv = [flag_of(name) if default else f"--no-{flag_of(name).removeprefix('--')}"]
        read = read_flags(argv, TrainConfig, prog="train_ppo.py", description="")
        assert list(read) == [name]
        assert build(TrainConfig, read) == TrainConfig()


HEAVY = {"torch", "gymnasium", "polars", "matplotlib"}
PARSE = f"""
import sys
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.train_command_line import parse_train_start
try:
    with entry("train_ppo.py"):
        parse_train_start(sys.argv[1:])
finally:
    heavy = {HEAVY} & sys.modules.keys()
    assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["--n-envs", "8"], 0, ""),
        (["--help"], 0, ""),
        (["--n-env", "8"], 2, 'train_ppo.py: Unknown flag --n-env. Did you mean "--n-envs"?\n'),
        (["--n-envs", "0"], 2, "train_ppo.py: n_envs must be a whole number of at least 1, but got 0.\n"),
        (["--config", "nope"], 2, "train_ppo.py: nope cannot be read: No such file or directory.\n"),
    ],
)
def test_the_command_line_is_answered_before_anything_heavy_is_imported(argv, code, complaint):
    run = subprocess.run([sys.executable, "-c", PARSE, *argv], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (code, complaint)


def test_seeds_are_trained_one_after_another():
    assert parse_train_start(["--seeds", "1", "2", "30"]).seeds == (1, 2, 30)
    assert parse_train_start([]).seeds == ()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--seeds", "1", "-2"], r"seed must be a whole number of at least 0, but got -2"),
        (["--seeds", "1", "2", "1"], r"seeds must be different numbers, but got 1 2 1\."),
        (["--seeds", "1", "--seed", "0"], "--seeds starts a new run for each seed; leave out --seed"),
        (["--seeds", "1", "--resume", "auto"], "leave out --resume"),
        (["--seeds", "1", "--check-env"], "leave out --check-env"),
        (["--seeds", "one"], "--seeds must be whole numbers, but got"),
    ],
)
def test_seeds_that_cannot_be_are_one_sentence(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_train_start(flags)
