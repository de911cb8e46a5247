"""Compiled acting and values against NumPy's and torch's, what can be compiled, and what is done where that fails."""

import importlib
import os
import subprocess
import sys
from typing import get_args

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.policies import compiled_networks
from ml_pipeline.models.rl.policies.compiled_networks import can_compile
from ml_pipeline.models.rl.policies.policy import Policy

CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))


def moved(policy):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.refresh()
    return policy


@pytest.mark.parametrize(
    "settings",
    [
        *({"activation": activation} for activation in get_args(Activation)),
        {"value_hidden_sizes": (8,)},
        {"value_hidden_sizes": (8, 40, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])
def test_choices_are_those_of_numpy(action_space, settings):
    config = PPOConfig(hidden_sizes=(33, 20), **settings)
    plain, compiled = (Policy(spaces.Box(-1, 1, (5,)), action_space, config) for _ in range(2))
    compiled.compile()
    compiled.distribution.sample = None  # is not called
    moved(plain), moved(compiled)  # refresh() tells it of other weights
    generator = np.random.default_rng(0)
    for n in (1, 8, 100):
        observations = generator.normal(size=(n, 5)).astype(np.float32)
        noise = plain.distribution.draw_noise(generator, (n,))
        expected, found = (policy.choose(observations, noise) for policy in (plain, compiled))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        found, expected = (
            [perceptron(torch.from_numpy(observations)) for perceptron in policy.actor_and_critic]
            for policy in (compiled, plain)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(64, 64), (33, 20)], ids=str)
@pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])
def test_the_bits_of_a_choice_do_not_depend_on_who_else_acts(action_space, sizes):
    """So that a process which acts in some of the environments gives them the actions that they get among all."""
    policy = moved(Policy(spaces.Box(-1, 1, (5,)), action_space, PPOConfig(hidden_sizes=sizes)))
    policy.compile()
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(1024, 5)).astype(np.float32)
    noise = policy.distribution.draw_noise(generator, (1024,))
    whole = policy.choose(observations, noise)
    for n in (1, 3, 8, 31):
        rows = [slice(start, start + n) for start in range(0, 1024, n)]
        np.testing.assert_array_equal(np.concatenate([policy.choose(observations[i], noise[i]) for i in rows]), whole)


def test_what_can_be_compiled():
    observations = spaces.Box(-1, 1, (3,))
    assert can_compile(Policy(observations, CHOICES).network)
    assert can_compile(Policy(observations, NUMBERS).network)
    assert can_compile(Policy(observations, NUMBERS, PPOConfig(ortho_init=False, log_std_init=-2.0)).network)
    assert not can_compile(Policy(observations, NUMBERS, PPOConfig(squash_actions=True)).network)
    assert not can_compile(Policy(observations, spaces.MultiDiscrete([2, 2])).network)
    assert not can_compile(Policy(observations, CHOICES, PPOConfig(share_layers=True)).network)
    assert not can_compile(Policy(observations, CHOICES, PPOConfig(hidden_sizes=(600, 600))).network)
    assert not can_compile(Policy(observations, CHOICES).network.double())


def train_once():
    """The kinds of choosing and of steps that a training has come to, after a first iteration."""
    config = PPOConfig(n_steps=8, minibatch_size=8, n_epochs=1)
    trainer = PPOTrainer(gymnasium.make("CartPole-v1"), config, total_timesteps=8)
    policy = trainer.train()
    return policy._compiled is not None, trainer.state_dict()["update"]["steps"]


UNTRIED = """
import warnings, gymnasium
from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    config = PPOConfig(n_steps=8, minibatch_size=8, n_epochs=1)
    trainer = PPOTrainer(gymnasium.make("CartPole-v1"), config, total_timesteps=8)
    policy = trainer.train()
print(policy._compiled, trainer.state_dict()["update"]["steps"])
print(*(each.message for each in warned if each.category is UserWarning), sep="\\n")
"""


@pytest.mark.slow
def test_where_numba_cannot_be_imported_training_goes_on_in_torch(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.26 or less. Got NumPy 9.9.')")
    path = os.pathsep.join([str(tmp_path), *sys.path])  # in a process of its own, which has not imported numba yet
    run = subprocess.run(
        [sys.executable, "-c", UNTRIED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert (run.stderr, run.returncode) == ("", 0)
    found, *warned = run.stdout.splitlines()
    assert found == "None torch"
    assert len(warned) == 1
    assert (
        "fails here (ImportError: Numba needs NumPy 1.26 or less. Got NumPy 9.9.), so training continues in torch"
        in (warned[0])
    )


@pytest.mark.parametrize(("broken", "left"), [("choose", (False, "torch")), ("update", (True, "torch"))])
def test_what_numba_cannot_compile_is_left_to_torch(broken, left, monkeypatch):
    def fail(*_):
        raise RuntimeError("LLVM ERROR\nand more")

    kernel = importlib.import_module("ml_pipeline.models.rl.compiled.kernel")
    fail.stats = kernel.evaluate.stats
    monkeypatch.setattr(compiled_networks, "_failures", [])
    monkeypatch.setattr(kernel, broken, fail)
    with pytest.warns(
        UserWarning, match=r"numba is installed but fails here \(RuntimeError: LLVM ERROR\), so"
    ) as warned:
        assert train_once() == left
    assert len(warned) == 1
