"""Which steps are chosen for which policy, each outcome forced; and what differs from autograd is replaced."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.compiled.layout import RELU
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.mlp import ACTIVATIONS
from ml_pipeline.models.rl.policies import compiled_networks
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch
from ml_pipeline.models.rl.update import ppo_update
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, StepSettings, TorchSteps, flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, ClosedFormGradients, LossWeights
from ml_pipeline.models.rl.update.ppo_update import CheckedSteps, fastest_steps


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
    monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)
    _, steps = chosen()
    assert isinstance(steps, CheckedSteps)
    assert isinstance(steps._steps._gradients, ClosedFormGradients)
    assert steps.kind == "torch"


def test_without_a_compiler_two_perceptrons_of_different_sizes_learn_by_autograd(monkeypatch):
    _, steps = chosen(value_hidden_sizes=(9,))
    assert isinstance(steps._steps, CompiledSteps)
    monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)
    _, steps = chosen(value_hidden_sizes=(9,))
    assert isinstance(steps._gradients, AutogradGradients)
    _, steps = chosen(value_hidden_sizes=(8,))
    assert isinstance(steps._steps._gradients, ClosedFormGradients)


def test_so_they_do_where_the_compiler_fails(monkeypatch):
    def fail(*_):
        raise RuntimeError("LLVM ERROR")

    monkeypatch.setattr(compiled_networks, "_failures", [])
    monkeypatch.setattr(ppo_update, "CompiledSteps", fail)
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
    monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)
    assert chosen(gradient_chunks=3)[1]._gradients._n_chunks == 3
    assert isinstance(chosen(gradient_chunks=1)[1]._steps._gradients, ClosedFormGradients)


def test_the_optimizer_holds_the_weights_of_the_policy_which_sees_them_move():
    policy, steps = chosen()
    observation = np.zeros((1, 3), np.float32)
    before = policy.parameters(observation)
    steps.optimizer.parameters.data.add_(1.0)
    assert all((parameter.detach() > -1.0).all() for parameter in policy.network.parameters())
    assert not np.array_equal(policy.parameters(observation), before)


CONFIG = PPOConfig(minibatch_size=16, n_epochs=2)
SETTINGS = StepSettings(LossWeights(0.2, None, 0.01, 0.5), 1e-2, float("inf"))
kinds = pytest.mark.parametrize("kind", ["torch", "compiled"])


def fast_steps(kind):
    """A network of two perceptrons and fast steps over its weights."""
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(3, spaces.Discrete(2), hidden_sizes=(8, 8), activation="tanh", generator=generator)
    flat = flatten_parameters(network.parameter_order())
    parts = FlatAdam(flat, flat.grad, epsilon=1e-5), CONFIG, np.random.default_rng(0)
    if kind == "compiled":
        return network, CompiledSteps(network, *parts)
    return network, TorchSteps(ClosedFormGradients(network), *parts)


def broken(kind):
    """Steps whose gradient is as if the network had rectifiers."""
    network, steps = fast_steps(kind)
    if kind == "compiled":
        steps._kernel.layout = steps._kernel.layout._replace(activation=RELU)
    else:
        steps._gradients._networks._activation = ACTIVATIONS["relu"]
    return network, steps


def batch_for(network):
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(40, 3, generator=generator)
    actions = torch.randint(2, (40,), generator=generator)
    with torch.no_grad():
        parameters, values = network(observations)
        log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)
    advantages, noise = torch.randn(2, 40, generator=generator)
    return Minibatch(observations, actions, LossInputs(log_probs, advantages, values + noise, values))


@kinds
def test_steps_that_agree_go_on_with_the_bits_of_unchecked_ones(kind):
    (network, plain), (same_network, fast) = fast_steps(kind), fast_steps(kind)
    batch, checked = batch_for(network), CheckedSteps(fast, same_network, CONFIG)
    for steps in (plain, checked):
        steps(batch, SETTINGS)
    assert checked.kind == kind
    assert torch.equal(checked.optimizer.parameters, plain.optimizer.parameters)


@kinds
def test_steps_that_differ_are_reported_once_and_replaced_by_autograd(kind):
    network, fast = broken(kind)
    batch, checked = batch_for(network), CheckedSteps(fast, network, CONFIG)
    autograd_network, steps = fast_steps("torch")
    by_autograd = TorchSteps(AutogradGradients(autograd_network), steps.optimizer, CONFIG, steps.generator)
    with pytest.warns(UserWarning, match=f"The {kind} gradient of this network differs from autograd's"):
        checked(batch, SETTINGS)
    by_autograd(batch, SETTINGS)
    assert checked.kind == "torch"
    assert torch.equal(checked.optimizer.parameters, by_autograd.optimizer.parameters)
    checked(batch, SETTINGS)  # and does not warn again


def test_only_the_first_update_is_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(ppo_update, "agrees_with_autograd", lambda *_: compared.append(1) or True)
    network, fast = fast_steps("torch")
    checked = CheckedSteps(fast, network, CONFIG)
    for _ in range(3):
        checked(batch_for(network), SETTINGS)
    assert compared == [1]


def test_a_gradient_that_is_not_finite_is_left_to_the_update():
    network, fast = broken("torch")
    batch = batch_for(network)
    batch.inputs.returns[0] = torch.nan
    CheckedSteps(fast, network, CONFIG)(batch, SETTINGS)  # no warning of it
