"""Settings fit together, and what a run writes of them is read again."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings, write_yaml
from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import build, flatten, hints_of
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig, train_config
from tests.examples import COSTLY

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
fraction = st.floats(0, 1)


def test_a_minibatch_larger_than_the_rollout_is_told():
    with pytest.raises(UserError, match=r"at most n_envs \* n_steps = 8 \* 256 = 2048, but got 2049"):
        TrainConfig(run=RunConfig(n_envs=8), ppo=PPOConfig(minibatch_size=2049))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("n_env", "n_envs"), ("lr", "learning_rate"), ("n-envs", "n_envs"), ("batch_size", "minibatch_size")],
)
def test_a_name_that_is_no_setting_is_told(name, meant):
    with pytest.raises(UserError, match=f'^unknown setting "{name}". Did you mean "{meant}"\\?$'):
        train_config({name: 8})


def test_several_processes_update_statistics_once_a_rollout():
    several = {"n_processes": 2, "n_envs": 2}
    assert train_config(several).ppo.normalize_update == "rollout"
    with pytest.raises(
        UserError, match='n_processes is 2 and normalize_update "step"; set normalize_update to rollout'
    ):
        train_config({**several, "normalize_update": "step"})
    assert train_config({**several, "normalize_update": "step", "normalize_obs": False}).run.n_processes == 2


def test_the_length_of_a_training_in_steps():
    run = RunConfig(n_envs=8, iterations=None, total_timesteps=100_000)
    assert TrainConfig(run=run).timesteps == 100_000
    assert TrainConfig(run=RunConfig(n_envs=8, iterations=20)).timesteps == 20 * 8 * 256


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("n_envs", 0, "n_envs must be a whole number of at least 1, but got 0."),
        ("iterations", -1, "iterations must be a whole number of at least 1, but got -1."),
        ("n_workers", -1, "n_workers must be a whole number of at least 0, but got -1."),
        (
            "n_workers",
            3,
            "n_workers must be at most n_envs = 1, but got 3; lower it to 1, or leave it to auto.",
        ),
        ("device", "xla", 'device must be one of auto, cpu, cuda, mps, but got "xla".'),
        ("seed", -1, "seed must be a whole number of at least 0, but got -1."),
        ("seed", 2**32, "seed must lie between 0 and 4294967295, but got 4294967296."),
        ("total_timesteps", 9, "One of iterations and total_timesteps must be set, but got both."),
        ("iterations", None, "One of iterations and total_timesteps must be set, but got none."),
    ],
)
def test_a_run_out_of_range_is_told_in_one_sentence(setting, value, sentence):
    with pytest.raises(UserError) as told:
        RunConfig(**{setting: value})
    assert str(told.value) == sentence


def test_a_start_method_that_this_platform_lacks_is_told(monkeypatch):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UserError, match='parallel_start_method must be one of spawn, but got "fork"'):
        RunConfig(parallel_start_method="fork")


def test_the_written_config_is_plain_yaml_with_every_setting(tmp_path):
    write_yaml(tmp_path / "config.yaml", flatten(TrainConfig()))
    flat = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert list(flat) == list(hints_of(TrainConfig))
    assert flat["hidden_sizes"] == [64, 64]
    assert flat["learning_rate"] == 0.0003


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "env_id": st.text(min_size=1).filter(lambda name: name != "none"),
        "n_envs": st.integers(1, 512),
        "n_workers": st.sampled_from(["auto", 0, 1]),
        "checkpoint_dir": st.sampled_from(["/runs/1", "/runs/a b/ü", "/0700"]).map(Path),
        "seed": st.integers(0, 2**32 - 1),
        "minibatch_size": st.integers(1, 256),
        "learning_rate": positive,
        "gamma": fraction,
        "target_kl": st.none() | positive,
        "hidden_sizes": st.lists(st.integers(1, 1024), min_size=1).map(tuple),
        "normalize_obs": st.booleans(),
        "activation": st.sampled_from(get_args(Activation)),
    },
)


def written(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    write_yaml(path, flatten(config))
    return path


@pytest.mark.slow
@given(SETTINGS)
def test_the_written_config_is_loaded_equal(tmp_path_factory, values):
    config = build(TrainConfig, values)
    assert build(TrainConfig, read_settings(written(config, tmp_path_factory), TrainConfig)) == config


@pytest.mark.slow
@settings(max_examples=COSTLY)  # each makes the parser of all flags
@given(SETTINGS)
def test_a_command_line_loads_the_written_config_equal(tmp_path_factory, values):
    config = build(TrainConfig, values)
    assert parse_train_start(["--config", str(written(config, tmp_path_factory))]).config == config


def test_a_file_in_sections_is_read_and_flags_win_over_it():
    example = Path(__file__).parents[2] / "configs" / "fast_training_ppo.json"
    config = parse_train_start(["--config", str(example), "--gamma", "0.9"]).config
    assert (config.run.total_timesteps, config.run.iterations) == (100_352, None)
    assert (config.ppo.ent_coef, config.ppo.gamma, config.ppo.minibatch_size) == (0.01, 0.9, 256)
    assert (config.trading.reward, config.trading.reward_kwargs) == ("fast_profit_reward", {"reward_scaling": 10_000.0})
    assert config.trading.trade_limit_percent == 50
    assert not config.trading.allow_short


def test_a_file_may_give_the_length_of_training_alone(tmp_path):
    (tmp_path / "settings.yaml").write_text("total_timesteps: 4096\n")
    run = parse_train_start(["--config", str(tmp_path / "settings.yaml")]).config.run
    assert (run.total_timesteps, run.iterations) == (4096, None)
