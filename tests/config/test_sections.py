"""Files in sections, as pipelines around Stable-Baselines3 have them, become the settings of this program."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.sections import AGENT_SECTIONS, flatten_sections, is_sectioned, same_value

SOURCE = Path("settings.json")
AGENT = {
    "algo": "PPO",
    "total_timesteps": 1e5,
    "save_path": "models/ppo.zip",
    "kwargs": {
        "policy": "MlpPolicy",
        "learning_rate": {"type": "linear", "initial_value": 0.0003},
        "n_steps": 2048,
        "batch_size": 256,
        "n_epochs": 10,
        "gamma": 0.99,
        "ent_coef": 0.01,
        "normalize_advantage": True,
        "use_sde": False,
        "rollout_buffer_class": None,
        "verbose": 2,
        "seed": 42,
        "policy_kwargs": {"net_arch": [{"pi": [256, 256], "vf": [256, 256]}], "activation_fn": "torch.nn.ReLU"},
    },
}
AGENT_FLAT = {
    "total_timesteps": 1e5,
    "learning_rate": 0.0003,
    "learning_rate_schedule": "linear",
    "n_steps": 2048,
    "minibatch_size": 256,
    "n_epochs": 10,
    "gamma": 0.99,
    "ent_coef": 0.01,
    "normalize_advantages": True,
    "use_sde": False,
    "seed": 42,
    "hidden_sizes": [256, 256],
    "activation": "relu",
}


def test_the_agent_is_the_same_as_a_section_and_alone():
    assert flatten_sections({"agent_config": AGENT}, AGENT_SECTIONS, SOURCE) == AGENT_FLAT
    assert flatten_sections(AGENT, AGENT_SECTIONS, SOURCE) == AGENT_FLAT


def test_the_spelling_of_the_zoo_stays_for_the_settings():
    content = {"kwargs": {"learning_rate": "lin_2.5e-4", "clip_range": "lin_0.1"}}
    assert flatten_sections(content, AGENT_SECTIONS, SOURCE) == content["kwargs"]


def test_initial_weights_keep_their_names():
    theirs = {"ortho_init": False, "log_std_init": -2}
    assert flatten_sections({"kwargs": {"policy_kwargs": theirs}}, AGENT_SECTIONS, SOURCE) == theirs


def test_a_value_network_may_have_layers_of_its_own():
    content = {"kwargs": {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [16, 9]}}}}
    assert flatten_sections(content, AGENT_SECTIONS, SOURCE) == {"hidden_sizes": [8], "value_hidden_sizes": [16, 9]}


@pytest.mark.parametrize(
    ("theirs", "ours"), [("nn.ELU", "elu"), ("GELU", "gelu"), ("torch.nn.SiLU", "silu"), ("nn.LeakyReLU", "leaky_relu")]
)
def test_activations_of_torch_have_names_here(theirs, ours):
    content = {"kwargs": {"policy_kwargs": {"activation_fn": theirs}}}
    assert flatten_sections(content, AGENT_SECTIONS, SOURCE) == {"activation": ours}


def test_a_section_may_be_a_file_beside_the_settings(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "ppo.json").write_text(json.dumps(AGENT))
    content, source = {"agent_config": "agents/ppo.json", "n_envs": 8}, tmp_path / "settings.json"
    assert flatten_sections(content, AGENT_SECTIONS, source) == {**AGENT_FLAT, "n_envs": 8}
    with pytest.raises(UserError, match=r"none\.json cannot be read"):
        flatten_sections({"agent_config": "none.json"}, AGENT_SECTIONS, source)


def test_flat_files_stay_what_they_are():
    assert not is_sectioned({"n_envs": 8, "total_timesteps": None}, AGENT_SECTIONS)
    assert is_sectioned({"algo": "ppo"}, AGENT_SECTIONS)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"agent_config": {"algo": "dqm"}}, 'there is no algo "dqm". Did you mean "DQN"\\?'),
        ({"agent_config": 7}, "agent_config must be a section of settings, but got 7"),
        ({"agent_config": {"kwargs": {"policy_kwargs": {"net_arch": {"pi": [8]}}}}}, "the layers of pi and of vf"),
        ({"agent_config": {"kwargs": {"learning_rate": {"type": "linear"}}}}, "have type and initial_value"),
        (
            {"agent_config": {"kwargs": {"policy": "Mlp"}}},
            'policy must be "MlpPolicy", "CnnPolicy", "MultiInputPolicy" or "MlpLstmPolicy", but got Mlp',
        ),
        ({"agent_config": {"kwargs": {"policy": ["MlpPolicy"]}}}, r"policy must be .*, but got \['MlpPolicy'\]"),
        ({"kwargs": {"rollout_buffer_class": "mine.Buffer"}}, "rollout_buffer_class must be None, as nothing else"),
        ({"algo": "ppo", "agent_config": {"total_timesteps": 1}, "total_timesteps": 2}, "total_timesteps is set twice"),
    ],
)
def test_what_cannot_be_had_is_named(content, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        flatten_sections(content, AGENT_SECTIONS, SOURCE)
    assert str(error.value).startswith("settings.json: ")


class Incomparable:
    def __eq__(self, other):
        raise TypeError("cannot be compared")

    __hash__ = None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array(["A", "B"]), np.array(["A", "B"]), True),
        (np.array(["A", "B"]), ("A", "B"), True),
        (np.array(["A", "B"]), np.array(["A", "C"]), False),
        (np.array([True]), [1], False),
        (np.float64(0.5), 0.5, True),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 2])}, False),
        (pl.DataFrame({"close": [1, 2]}), pl.DataFrame({"close": [1, 2]}), False),
        (Incomparable(), Incomparable(), False),
    ],
)
def test_only_what_compares_as_equal_is_the_same_value(one, other, same):
    assert same_value(one, other) is same


def test_the_arguments_of_another_algorithm_keep_their_names(tmp_path):
    kwargs = {
        "policy": "MlpPolicy", "learning_rate": 1e-3, "gamma": 0.9, "batch_size": 64, "buffer_size": 9, "verbose": 1,
        "policy_kwargs": {"net_arch": [32], "activation_fn": "nn.Tanh"}, "n_steps": 3, "seed": 4,
    }  # fmt: skip
    expected = {
        "algorithm": "DQN", "learning_rate": 1e-3, "gamma": 0.9, "minibatch_size": 64, "hidden_sizes": [32],
        "activation": "tanh", "seed": 4, "algorithm_kwargs": {"buffer_size": 9, "n_steps": 3},
    }  # fmt: skip
    source = tmp_path / "settings.yaml"
    assert flatten_sections({"algo": "dqn", "kwargs": kwargs}, AGENT_SECTIONS, source) == expected
    assert flatten_sections({"agent_config": {"algo": "DQN", "kwargs": kwargs}}, AGENT_SECTIONS, source) == expected
    assert flatten_sections({"algo": "PPO", "kwargs": {"n_steps": 3}}, AGENT_SECTIONS, source) == {"n_steps": 3}


def test_event_files_are_asked_for_by_the_name_of_stable_baselines3():
    """In `training` and `logging`; in `kwargs`, which are the arguments of a constructor, it changes nothing."""
    for section in ("training", "logging"):
        content = {section: {"tensorboard_log": "runs/events"}}
        assert flatten_sections(content, AGENT_SECTIONS, SOURCE) == {"tensorboard_dir": "runs/events"}
    assert flatten_sections({"kwargs": {"tensorboard_log": "runs/events"}}, AGENT_SECTIONS, SOURCE) == {}
