"""Settings for an algorithm of Stable-Baselines3: its own defaults, our names, and sentences about the rest."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.runs.train_config import TrainConfig, train_config


def test_what_is_not_given_has_the_default_of_the_algorithm():
    dqn, a2c = (train_config({"algorithm": name}) for name in ("DQN", "A2C"))
    assert (dqn.ppo.learning_rate, dqn.ppo.minibatch_size, dqn.ppo.max_grad_norm) == (1e-4, 32, 10.0)
    assert (a2c.ppo.learning_rate, a2c.run.algorithm_kwargs) == (7e-4, {"n_steps": 5})
    assert not dqn.ppo.normalize_obs
    assert not dqn.ppo.normalize_rewards
    assert train_config({}) == TrainConfig()


def test_what_is_given_counts_even_where_it_is_the_default_of_ppo():
    assert train_config({"algorithm": "DQN", "learning_rate": 3e-4}).ppo.learning_rate == 3e-4
    assert train_config({"algorithm": "A2C", "n_steps": 16}).run.algorithm_kwargs == {"n_steps": 16}


@pytest.mark.parametrize("name", ["A2C", "DDPG", "DQN", "SAC", "TD3"])
def test_written_settings_mean_the_same_again(name):
    config = train_config({"algorithm": name, "total_timesteps": 100})
    written = convert_settings(flatten(config), TrainConfig, source=Path("config.yaml"))
    assert train_config(written) == config


def test_the_spelling_of_the_zoo_is_for_all_algorithms():
    given = convert_settings({"algorithm": "DQN", "learning_rate": "lin_1e-3"}, TrainConfig, source=Path("dqn.yaml"))
    ppo = train_config(given).ppo
    assert (ppo.learning_rate, ppo.learning_rate_schedule) == (1e-3, "linear")


def test_an_argument_with_a_setting_of_its_own_becomes_that():
    config = train_config({"algorithm": "DQN", "algorithm_kwargs": {"gamma": 0.9, "batch_size": 8, "tau": 0.5}})
    assert (config.ppo.gamma, config.ppo.minibatch_size, config.run.algorithm_kwargs) == (0.9, 8, {"tau": 0.5})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "DQM"}, 'algorithm must be one of PPO, .*, but got "DQM". Did you mean "DQN"?'),
        ({"algorithm_kwargs": {"tau": 1}}, "algorithm_kwargs are for the algorithms of Stable-Baselines3"),
        ({"clip_range": 0.3}, "clip_range is a setting of PPO that DQN does not have; leave it out"),
        ({"learning_rate": lambda left: 1e-3 * left}, "learning_rate is a function, which is for PPO; with DQN use a"),
        ({"memory": "gru"}, "memory is a setting of PPO that DQN does not have"),
        ({"algorithm": "SAC", "ent_coef": 0.1}, r'algorithm_kwargs, such as \'{"ent_coef": 0.1}\''),
        ({"learning_rate_schedule": "adaptive", "target_kl": 0.1}, "target_kl is a setting of PPO|adaptive is for PPO"),
        ({"vec_env": "batched"}, 'vec_env "batched" is for PPO'),
        ({"algorithm_kwargs": {"bufer_size": 1}}, 'DQN has no argument "bufer_size". Did you mean "buffer_size"?'),
        (
            {"algorithm_kwargs": {"buffer_size": "many"}},
            "DQN must be a whole number of at least 0, but got",
        ),
        ({"algorithm_kwargs": {"buffer_size": -5}}, "a whole number of at least 0, but got -5"),
        ({"algorithm_kwargs": {"tau": "much"}}, "tau of DQN must be a number, but got 'much'"),
        ({"algorithm_kwargs": {"optimize_memory_usage": 1}}, "must be true or false, but got 1"),
        ({"algorithm_kwargs": {"train_freq": [1, "day"]}}, "train_freq of DQN must be a whole number or like"),
        ({"algorithm_kwargs": {"seed": 1}}, "has seed, which the run sets itself; set seed"),
        ({"algorithm_kwargs": {"replay_buffer_class": "X"}}, "settings cannot name a class"),
        ({"gamma": 0.9, "algorithm_kwargs": {"gamma": 0.8}}, "gamma is 0.9, but algorithm_kwargs has gamma 0.8"),
        (
            {"algorithm_kwargs": {"policy_kwargs": {"net_arhc": [8]}}},
            '"net_arhc". Did you mean "net_arch"?',
        ),
        ({"algorithm_kwargs": {"policy_kwargs": {"activation_fn": "x"}}}, "activation_fn must be one of tanh, relu"),
        ({"algorithm_kwargs": {"policy_kwargs": 3}}, "policy_kwargs must be a mapping, but got 3"),
        (
            {"hidden_sizes": (8,), "algorithm_kwargs": {"policy_kwargs": {"net_arch": [8]}}},
            "Layers are given twice, as hidden_sizes and as net_arch",
        ),
        (
            {"algorithm": "TD3", "algorithm_kwargs": {"action_noise": -1}},
            "a standard deviation such as 0.1, but",
        ),
    ],
)
def test_what_the_algorithm_does_not_have_is_a_sentence(settings, sentence):
    usual = {} if "Stable-Baselines3" in sentence else {"algorithm": "DQN"}
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        train_config({**usual, **settings})


def test_in_python_every_value_counts_as_given():
    with pytest.raises(UserError, match="algorithm_kwargs has gamma, which has a setting of its own"):
        TrainConfig(run=RunConfig(algorithm="DQN", algorithm_kwargs={"gamma": 0.5}))
    assert TrainConfig(run=RunConfig(algorithm="DQN"), ppo=PPOConfig()).ppo.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("DQN", "stable_baselines3", r'pip install -e "\.\[sb3\]"'),
        ("QRDQN", "sb3_contrib", "pip install sb3-contrib"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(monkeypatch, name, package, remedy):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"{name} is an algorithm of {package}, which is not installed; {remedy}"):
        train_config({"algorithm": name})
