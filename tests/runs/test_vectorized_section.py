"""Environments by other libraries' names: the sections vectorized and vectorized_training, and --vec-env."""

import pytest
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs import vectorized_section
from ml_pipeline.runs.train_command_line import parse_train_config
from ml_pipeline.runs.train_config import train_config, train_settings_of
from ml_pipeline.service.agent_config import agent_config

DOCUMENT = """
training:
  total_timesteps: 500000  # Increased due to faster throughput
  vectorized_training:
    enabled: true
    n_envs: null  # Auto-detect
    use_shared_memory: false  # Use SubprocVecEnv
    symbols:
      - "EURUSD"
      - "GBPUSD"
      - "USDJPY"
    data_dir: "data/forex"
"""


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(vectorized_section, "usable_cores", lambda: 4.0)
    monkeypatch.setattr("ml_pipeline.runs.train_config.usable_cores", lambda: 4.0)


def settings_of(text, tmp_path):
    return train_settings_of(yaml.safe_load(text), tmp_path / "settings.yaml")


def test_vectorized_training_is_read_as_it_stands(four_cores, tmp_path):
    settings = settings_of(DOCUMENT, tmp_path)
    assert settings["symbols"] == ("EURUSD", "GBPUSD", "USDJPY")
    assert (settings["per_symbol"], str(settings["data"])) == (True, "data/forex")
    assert settings["n_envs"] == 3  # one per core, in whole rounds of the symbols
    agent = agent_config(yaml.safe_load(DOCUMENT))
    assert agent.n_envs is None  # chosen by measuring, when the environments are made
    assert (agent.train.trading.symbols, agent.train.run.total_timesteps) == (("EURUSD", "GBPUSD", "USDJPY"), 500_000)


def test_a_number_of_none_is_one_environment_per_core(four_cores, tmp_path):
    for text in ("vectorized: {num_envs: null}", "training: {vectorized_training: {}}", "n_envs: null"):
        assert settings_of(text, tmp_path)["n_envs"] == 4
    subproc = train_config(settings_of("vectorized: {num_envs: null, env_type: SubprocVecEnv}", tmp_path))
    assert (subproc.run.n_envs, subproc.run.n_workers) == (4, 4)


def test_without_enabled_environments_are_stepped_in_turn(tmp_path):
    config = train_config(settings_of("training: {vectorized_training: {enabled: false, n_envs: 8}}", tmp_path))
    assert (config.run.n_envs, config.run.vec_env) == (1, "serial")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("{n_env: 3}", 'unknown setting "n_env" in vectorized_training. Did you mean "n_envs"?'),
        ("{n_envs: 0}", "n_envs must be a whole number of at least 1, but got 0."),
        ("{enabled: maybe}", "enabled must be true or false, but got 'maybe'."),
        ("{symbols: EURUSD}", "symbols must be a list such as"),
    ],
)
def test_what_vectorized_training_does_not_take(tmp_path, section, sentence):
    with pytest.raises(UserError) as told:
        settings_of(f"training: {{vectorized_training: {section}}}", tmp_path)
    assert sentence in str(told.value)


@pytest.mark.parametrize("flag", ["--vec-env", "--env-type", "--env_type", "--env-type="])
def test_names_of_stable_baselines3_mean_what_they_say(four_cores, flag):
    def parsed(kind, *more):
        words = [f"{flag}{kind}"] if flag.endswith("=") else [flag, kind]
        return parse_train_config([*words, "--n-envs", "3", *more], prog="train", description="", usual={}).run

    assert (parsed("DummyVecEnv").vec_env, parsed("DummyVecEnv").n_workers) == ("serial", "auto")
    assert (parsed("SubprocVecEnv").vec_env, parsed("SubprocVecEnv").n_workers) == ("parallel", 3)
    assert parsed("SubprocVecEnv", "--n-workers", "2").n_workers == 2
    with pytest.raises(UserError, match="steps in workers, but n_workers is 0"):
        parsed("SubprocVecEnv", "--n-workers", "0")


@pytest.mark.parametrize(
    "named", ["n_envs: 2", "training: {n_envs: 2}", "training: {vectorized_training: {n_envs: 2}}"]
)
def test_the_number_may_stand_beside_a_section_vectorized_that_names_none(tmp_path, named):
    read = settings_of(f"{named}\nvectorized: {{env_type: DummyVecEnv}}", tmp_path)
    assert (read["n_envs"], read["vec_env"]) == (2, "DummyVecEnv")
    with pytest.raises(UserError, match="n_envs is 2, but max_concurrent_envs is 1; raise max_concurrent_envs"):
        settings_of(f"{named}\nvectorized: {{max_concurrent_envs: 1}}", tmp_path)
    with pytest.raises(UserError, match="n_envs is set twice"):
        settings_of(f"{named}\nvectorized: {{num_envs: 3}}", tmp_path)


def test_a_number_left_open_beside_a_section_vectorized_is_one_per_core_within_its_limit(four_cores, tmp_path):
    for text in ("n_envs: null", "training: {vectorized_training: {n_envs: null}}"):
        assert settings_of(f"{text}\nvectorized: {{env_type: DummyVecEnv}}", tmp_path)["n_envs"] == 4
        assert settings_of(f"{text}\nvectorized: {{max_concurrent_envs: 3}}", tmp_path)["n_envs"] == 3
    assert settings_of("vectorized: {num_envs: null, max_concurrent_envs: 3}", tmp_path)["n_envs"] == 3
