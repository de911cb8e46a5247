"""`examples/ppo_in_one_file.py` trains as `PPOTrainer` does, up to rounding, and stays short enough to read."""

import ast
import importlib.util
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from ml_pipeline import PPOConfig, PPOTrainer

PATH = Path(__file__).resolve().parent.parent / "examples" / "ppo_in_one_file.py"


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("ppo_in_one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


OTHER_SETTINGS = {
    "n_steps": 64,
    "minibatch_size": 80,  # the last of 192 transitions has 32
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "clip_range": 0.1,
    "clip_range_vf": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.7,
    "max_grad_norm": 0.3,
    "hidden_sizes": (32, 16),
    "clip_obs": 2.0,
}


@pytest.mark.parametrize("settings", [{}, OTHER_SETTINGS], ids=["defaults", "other settings"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_weights_and_statistics_are_those_of_the_trainer(one_file, env_id, settings):
    make_env = partial(gymnasium.make, env_id)
    iterations, num_envs = 4, 3
    total_timesteps = iterations * num_envs * PPOConfig(**settings).n_steps

    with PPOTrainer([make_env] * num_envs, PPOConfig(**settings), total_timesteps=total_timesteps, seed=5) as trainer:
        before = trainer.policy.state_dict()["network"]
        policy = trainer.train(progress=False)
    network, moments = one_file.train(
        make_env, one_file.Settings(**settings), num_envs=num_envs, total_timesteps=total_timesteps, seed=5
    )

    theirs, ours = policy.network.state_dict(), network.state_dict()
    assert len(ours) == len(theirs)
    for name, expected in theirs.items():
        weight = ours[name.removeprefix("distribution.")]
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-4, err_msg=name)
        if name.endswith("weight"):
            assert abs(weight - before[name]).max() > 1e-3, f"{name} has learned nothing"
    known = policy.observations.normalizer.moments
    assert moments.count == known.count
    np.testing.assert_allclose(moments.mean, known.mean, atol=1e-4)
    np.testing.assert_allclose(moments.variance, known.variance, atol=1e-4)


def test_settings_have_the_names_and_defaults_of_the_configuration(one_file):
    for name, default in vars(one_file.Settings()).items():
        assert default == getattr(PPOConfig(), name), name


def test_it_is_short_and_needs_no_more_than_numpy_torch_and_gymnasium():
    source = PATH.read_text()
    assert len(source.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"gymnasium", "numpy", "torch"}
