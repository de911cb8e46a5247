"""Presets are plain settings that flags and files win over, and those that were measured."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.learning_jobs import JOBS
from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.train_command_line import parse_train_config, parse_train_start, preset_file
from ml_pipeline.runs.train_config import TrainConfig

ZOO = yaml.safe_load(preset_file("zoo").read_text())


def config_of(*flags):
    return parse_train_start(["--preset", "zoo", *flags]).config


@pytest.mark.parametrize("env_id", ZOO)
def test_the_zoo_is_what_learning_was_measured_with(env_id):
    job = JOBS[env_id]
    run = RunConfig(env_id=env_id, n_envs=job.num_envs, total_timesteps=job.total_steps, iterations=None)
    assert config_of("--env-id", env_id) == TrainConfig(run=run, ppo=job.config)


def test_flags_and_the_file_win_over_the_preset(tmp_path):
    usual = config_of("--env-id", "CartPole-v1")
    assert config_of("--env-id", "CartPole-v1", "--gamma", "0.5").ppo == replace(usual.ppo, gamma=0.5)
    longer = config_of("--env-id", "CartPole-v1", "--iterations", "3").run
    assert (longer.iterations, longer.total_timesteps) == (3, None)
    file = tmp_path / "run.yaml"
    file.write_text("env_id: CartPole-v1\nn_envs: 16\ngamma: 0.6\n")
    both = config_of("--config", str(file), "--gamma", "0.7")
    assert (both.run.n_envs, both.ppo.gamma, both.ppo.gae_lambda) == (16, 0.7, 0.8)


@pytest.mark.parametrize(("flags", "what"), [(["--env-id", "Ant-v5"], "Ant-v5"), ([], "trading")])
def test_what_has_no_settings_is_told_what_has(flags, what):
    with pytest.raises(UserError) as told:
        config_of(*flags)
    assert str(told.value) == (
        f"The preset zoo has no settings for {what}; it has them for CartPole-v1, Acrobot-v1, LunarLander-v3, "
        "MountainCarContinuous-v0, Pendulum-v1."
    )


def test_a_preset_begins_a_new_run():
    with pytest.raises(UserError, match="--preset starts a new run, but --resume continues an old one"):
        config_of("--env-id", "CartPole-v1", "--resume", "auto")


def test_the_settings_of_a_run_show_it_in_full(tmp_path, capsys):
    short = ["--iterations", "1", "--eval-episodes", "1", "--n-workers", "0"]
    assert (
        train_ppo.main(["--env-id", "CartPole-v1", "--preset", "zoo", "--checkpoint-dir", str(tmp_path), *short]) == 0
    )
    settings = yaml.safe_load(Path(tmp_path / "config.yaml").read_text())
    expected = {**ZOO["CartPole-v1"], "iterations": 1, "total_timesteps": None}
    assert {name: settings[name] for name in expected} == expected
    assert "preset" not in settings


def test_the_usual_of_a_command_gives_way_to_preset_file_and_flags(tmp_path):
    def n_envs(*flags):
        return parse_train_config(flags, prog="x", description="", usual={"n_envs": 8}).run.n_envs

    file = tmp_path / "run.yaml"
    file.write_text("n_envs: 3")
    assert n_envs() == 8
    assert n_envs("--env-id", "Pendulum-v1", "--preset", "zoo") == 4
    assert n_envs("--config", str(file)) == 3
    assert n_envs("--config", str(file), "--n-envs", "2") == 2
    with pytest.raises(UserError, match="Unknown flag --resume"):
        n_envs("--resume", "auto")


def test_the_defaults_stay_without_a_preset():
    assert parse_train_start([]).config == TrainConfig(ppo=PPOConfig())
