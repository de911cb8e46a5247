"""Which steps are chosen for which policy, each outcome forced."""

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies import compiled_networks
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.update import step_choice
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_steps import TorchSteps
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, ClosedFormGradients
from ml_pipeline.models.rl.update.step_choice import CheckedSteps, fastest_steps


def chosen(**settings):
    config = PPOConfig(hidden_sizes=(8,), **settings)
    policy = Policy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), config)
    return policy, fastest_steps(policy, config, np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"memory": "lstm", "share_layers": True}], ids=str)
def test_two_perceptrons_and_memory_learn_compiled_and_checked(settings):
    _, steps = chosen(**settings)
    assert isinstance(steps, CheckedSteps)
    assert isinstance(steps._steps, CompiledSteps)
    assert steps.kind == "compiled"


def test_without_a_compiler_they_learn_in_closed_form_and_checked(monkeypatch):
    monkeypatch.setattr(step_choice, "can_compile", lambda network: False)
    _, steps = chosen()
    assert isinstance(steps, CheckedSteps)
    assert isinstance(steps._steps._gradients, ClosedFormGradients)
    assert steps.kind == "torch"


def test_without_a_compiler_two_perceptrons_of_different_sizes_learn_by_autograd(monkeypatch):
    _, steps = chosen(value_hidden_sizes=(9,))
    assert isinstance(steps._steps, CompiledSteps)
    monkeypatch.setattr(step_choice, "can_compile", lambda network: False)
    _, steps = chosen(value_hidden_sizes=(9,))
    assert isinstance(steps._gradients, AutogradGradients)
    _, steps = chosen(value_hidden_sizes=(8,))
    assert isinstance(steps._steps._gradients, ClosedFormGradients)


def test_so_they_do_where_the_compiler_fails(monkeypatch):
    def fail(*_):
        raise RuntimeError("LLVM ERROR")

    monkeypatch.setattr(compiled_networks, "_failures", [])
    monkeypatch.setattr(step_choice, "CompiledSteps", fail)
    with pytest.warns(UserWarning, match="numba is installed but fails here"):
        _, steps = chosen()
    assert isinstance(steps._steps._gradients, ClosedFormGradients)


@pytest.mark.parametrize(
    "settings", [{"share_layers": True}, {"memory": "gru", "memory_size": 512, "minibatch_size": 8}]
)
def test_any_other_network_learns_by_autograd(settings):
    _, steps = chosen(**settings)
    assert isinstance(steps, TorchSteps)
    assert isinstance(steps._gradients, AutogradGradients)


@pytest.mark.parametrize(
    ("side", "minibatch_size", "n_chunks"), [(84, 512, 8), (84, 128, 2), (40, 256, 4), (40, 64, 1), (84, 32, 1)]
)
def test_large_minibatches_of_large_networks_are_cut_into_chunks(side, minibatch_size, n_chunks):
    config = PPOConfig(minibatch_size=minibatch_size)
    policy = Policy(spaces.Box(0, 255, (side, side, 1), np.uint8), spaces.Discrete(2), config)
    gradients = fastest_steps(policy, config, np.random.default_rng(0))._gradients
    assert getattr(gradients, "_n_chunks", 1) == n_chunks


def test_chunks_that_are_asked_for_are_taken_but_by_compiled_steps(monkeypatch):
    assert chosen(share_layers=True, gradient_chunks=3)[1]._gradients._n_chunks == 3
    assert chosen(gradient_chunks=3)[1].kind == "compiled"
    monkeypatch.setattr(step_choice, "can_compile", lambda network: False)
    assert chosen(gradient_chunks=3)[1]._gradients._n_chunks == 3
    assert isinstance(chosen(gradient_chunks=1)[1]._steps._gradients, ClosedFormGradients)


def test_the_optimizer_holds_the_weights_of_the_policy_which_sees_them_move():
    policy, steps = chosen()
    observation = np.zeros((1, 3), np.float32)
    before = policy.parameters(observation)
    steps.optimizer.parameters.data.add_(1.0)
    assert all((parameter.detach() > -1.0).all() for parameter in policy.network.parameters())
    assert not np.array_equal(policy.parameters(observation), before)
