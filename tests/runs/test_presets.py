"""Presets are plain settings that flags and files win over, and the zoo's own."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from gymnasium import spaces

from benchmarks.learning_jobs import JOBS
from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.sections import AGENT_SECTIONS, flatten_sections
from ml_pipeline.models.rl.policies.compiled_networks import can_compile
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.train_command_line import parse_train_config, parse_train_start, preset_file
from ml_pipeline.runs.train_config import TrainConfig

ZOO = yaml.safe_load(preset_file("zoo").read_text())


def config_of(*flags):
    return parse_train_start(["--preset", "zoo", *flags]).config


MEASURED = ["CartPole-v1", "Acrobot-v1", "LunarLander-v3", "BipedalWalker-v3", "Walker2d-v5", "Ant-v5"]


@pytest.mark.parametrize("env_id", MEASURED)
def test_the_zoo_is_what_learning_was_measured_with(env_id):
    job = JOBS[env_id]
    run = RunConfig(env_id=env_id, n_envs=job.num_envs, total_timesteps=job.total_steps, iterations=None)
    assert config_of("--env-id", env_id) == TrainConfig(run=run, ppo=job.config)


HOPPER = {
    "n_steps": 512, "batch_size": 32, "gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519,
    "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671,
    "policy_kwargs": {
        "log_std_init": -2, "ortho_init": False, "activation_fn": "nn.ReLU",
        "net_arch": {"pi": [256, 256], "vf": [256, 256]},
    },
}  # fmt: skip
# In the words of the zoo's file: n_envs, n_timesteps, whether it normalizes, and the arguments of PPO; then the sizes
# of observations and actions.
OF_THE_ZOO = {
    "Pendulum-v1": (4, 100_000, False, {
        "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    }, 3, 1),
    "MountainCarContinuous-v0": (1, 20_000, True, {
        "batch_size": 8, "n_steps": 8, "gamma": 0.9999, "learning_rate": 7.77e-05, "ent_coef": 0.00429,
        "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    }, 2, 1),
    "HalfCheetah-v5": (1, 1_000_000, True, {
        **HOPPER, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05, "ent_coef": 0.000401762,
        "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
    }, 17, 6),
    "Hopper-v5": (1, 1_000_000, True, HOPPER, 11, 3),
}  # fmt: skip


@pytest.mark.parametrize("env_id", OF_THE_ZOO)
def test_the_zoos_own_words_are_the_same_settings(env_id):
    n_envs, total_timesteps, normalize, kwargs, observation_size, action_size = OF_THE_ZOO[env_id]
    preset = config_of("--env-id", env_id)
    theirs = flatten_sections({"kwargs": kwargs}, AGENT_SECTIONS, Path("ppo.yml"))
    theirs = {**theirs, "hidden_sizes": tuple(theirs.get("hidden_sizes", (64, 64)))}
    assert preset.ppo == PPOConfig(normalize_obs=normalize, normalize_rewards=normalize, **theirs)
    assert (preset.run.n_envs, preset.run.total_timesteps) == (n_envs, total_timesteps)
    preset.ppo.check_batch(n_envs)
    policy = Policy(spaces.Box(-1, 1, (observation_size,)), spaces.Box(-1, 1, (action_size,)), preset.ppo)
    expected = kwargs.get("policy_kwargs", {}).get("log_std_init", 0.0)
    assert policy.distribution.log_std.detach().numpy() == pytest.approx(expected)
    assert can_compile(policy.network) == ("use_sde" not in kwargs)


def test_flags_and_the_file_win_over_the_preset(tmp_path):
    usual = config_of("--env-id", "CartPole-v1")
    assert config_of("--env-id", "CartPole-v1", "--gamma", "0.5").ppo == replace(usual.ppo, gamma=0.5)
    longer = config_of("--env-id", "CartPole-v1", "--iterations", "3").run
    assert (longer.iterations, longer.total_timesteps) == (3, None)
    file = tmp_path / "run.yaml"
    file.write_text("env_id: CartPole-v1\nn_envs: 16\ngamma: 0.6\n")
    both = config_of("--config", str(file), "--gamma", "0.7")
    assert (both.run.n_envs, both.ppo.gamma, both.ppo.gae_lambda) == (16, 0.7, 0.8)


@pytest.mark.parametrize(("flags", "what"), [(["--env-id", "Swimmer-v5"], "Swimmer-v5"), ([], "trading")])
def test_what_has_no_settings_is_told_what_has(flags, what):
    with pytest.raises(UserError) as told:
        config_of(*flags)
    assert str(told.value) == (
        f"The preset zoo has no settings for {what}; it has them for CartPole-v1, Acrobot-v1, LunarLander-v3, "
        "MountainCarContinuous-v0, Pendulum-v1, BipedalWalker-v3, HalfCheetah-v5, Hopper-v5, Walker2d-v5, Ant-v5."
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
