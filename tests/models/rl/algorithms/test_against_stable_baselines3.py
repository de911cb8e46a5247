"""Number by number against Stable-Baselines3's PPO: same weights, environments, actions and permutations.

Where the two differ on purpose:
- A truncated step: they add gamma V(final_obs) to its reward and treat it as terminated, we bootstrap from it. The
  advantages are the same numbers; what they store as the reward is not the environment's any more.
- Value clipping: their error is that of the clipped value, ours the worse of the two. They agree where the value moved
  towards the return, since there the clipped one is the worse.

T steps, N environments, B = T * N. Their flat order is one environment after another, ours one step after another.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.networks.mlp import ACTIVATIONS
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.estimates import estimate
from ml_pipeline.models.rl.rollout.host_collector import HostCollector
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch
from ml_pipeline.models.rl.update import ppo_update
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, flatten_parameters
from ml_pipeline.models.rl.update.ppo_loss import (
    AutogradGradients,
    ClosedFormGradients,
    LossWeights,
    loss_terms,
    normalize_advantages,
)
from ml_pipeline.models.rl.update.ppo_update import PPOUpdate, fastest_steps

sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.utils import LinearSchedule  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

N_STEPS, NUM_ENVS, SEED = 32, 3, 5
N_SAMPLES = N_STEPS * NUM_ENVS
ACTION_SPACES = {
    "discrete": spaces.Discrete(3),
    "choices": spaces.MultiDiscrete([3, 2]),
    "box": spaces.Box(-0.5, 0.5, (2,)),
}
FASTEST = {"discrete": "compiled", "choices": "torch", "box": "compiled"}
SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.02, "vf_coef": 0.7, "learning_rate": 3e-3}
kinds = pytest.mark.parametrize("kind", ACTION_SPACES)


class Walk(gymnasium.Env):
    """A seeded random walk whose episodes terminate, are truncated, or both at once."""

    observation_space = spaces.Box(-9, 9, (4,))

    def __init__(self, kind):
        self.action_space = ACTION_SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = self.np_random.normal(size=4).astype(np.float32), 0
        return self.position.copy(), {}

    def step(self, action):
        self.t += 1
        self.position += self.np_random.normal(size=4).astype(np.float32) + 0.2 * np.float32(np.sum(action))
        terminated = bool(abs(self.position[0]) > 3 or self.t == 9)
        return np.clip(self.position, -9, 9), float(self.position[1]), terminated, self.t in (6, 9), {}


class Pair(NamedTuple):
    """Their algorithm with a rollout of its own, and ours with the same weights and the same steps."""

    kind: str
    theirs: "sb3.PPO"
    policy: Policy
    collector: HostCollector
    config: PPOConfig


def pair(kind, **settings):
    settings = {**SETTINGS, "n_epochs": 1, "clip_range_vf": None, "max_grad_norm": 0.5, **settings}
    batch_size = settings.pop("minibatch_size", N_SAMPLES)
    network = {name: settings.pop(name) for name in ("value_hidden_sizes", "activation") if name in settings}
    theirs = sb3.PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: TimeLimitFlag(Walk(kind))] * NUM_ENVS),
        n_steps=N_STEPS,
        batch_size=batch_size,
        policy_kwargs={
            "net_arch": {"pi": [16, 8], "vf": list(network.get("value_hidden_sizes", [16, 8]))},
            "activation_fn": ACTIVATIONS[network.get("activation", "tanh")].module,
        },
        device="cpu",
        seed=SEED,
        **settings,
    )
    theirs.set_logger(Logger(None, []))  # its own would make a folder in TMPDIR
    _, callback = theirs._setup_learn(N_SAMPLES)
    theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, N_STEPS)

    config = PPOConfig(
        n_steps=N_STEPS,
        minibatch_size=batch_size,
        hidden_sizes=(16, 8),
        normalize_obs=False,
        normalize_rewards=False,
        **settings,
        **network,
    )
    envs = SerialEnv([lambda: Walk(kind)] * NUM_ENVS)
    policy = Policy(envs.single_observation_space, envs.single_action_space, config, seed=0)
    take_weights(theirs.policy, policy.network)
    policy.refresh()
    collector = HostCollector(envs, policy, config, seed=SEED)
    their_actions = iter(theirs.rollout_buffer.actions)
    policy.choose = lambda *_: as_ours(kind, next(their_actions))
    assert collector.collect(should_stop=lambda: False)
    return Pair(kind, theirs, policy, collector, config)


class TimeLimitFlag(gymnasium.Wrapper):
    """Their vectorizer tells truncation by this info; Gymnasium's own reset of the generator stays out of it."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "TimeLimit.truncated": truncated and not terminated}


def as_ours(kind, their_actions):
    """(..., 1) or (..., A) floats to what our distributions give."""
    return their_actions[..., 0].astype(np.int64) if kind == "discrete" else their_actions.astype(np.float32)


def weights_in_our_order(their_policy):
    mlp = their_policy.mlp_extractor
    log_std = [their_policy.log_std] if hasattr(their_policy, "log_std") else []
    actor = [*mlp.policy_net.parameters(), *their_policy.action_net.parameters()]
    return [*log_std, *actor, *mlp.value_net.parameters(), *their_policy.value_net.parameters()]


@torch.no_grad()
def take_weights(their_policy, network):
    for ours, theirs in zip(network.parameters(), weights_in_our_order(their_policy), strict=True):
        ours.copy_(theirs)


@torch.no_grad()
def move_weights(their_policy, *, by):
    """As an earlier minibatch would: ratios leave 1, values leave their old predictions."""
    generator = torch.Generator().manual_seed(1)
    for weight in their_policy.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator), alpha=by)


def estimates_of(p):
    return estimate(p.collector.buffer, p.policy, gamma=p.config.gamma, gae_lambda=p.config.gae_lambda)


def by_step(array):
    return array.reshape(N_STEPS, NUM_ENVS)


@kinds
def test_the_rollout_has_every_way_to_end(kind):
    buffer = pair(kind).collector.buffer
    assert (buffer.terminated & ~buffer.truncated).any()
    assert (buffer.truncated & ~buffer.terminated).any()
    assert (buffer.truncated & buffer.terminated).any()
    assert not (buffer.terminated | buffer.truncated)[-1].all()  # and an episode that goes on after it


@kinds
def test_advantages_returns_values_and_log_probs_are_theirs(kind):
    p = pair(kind)
    theirs, inputs = p.theirs.rollout_buffer, estimates_of(p).batch.inputs
    np.testing.assert_array_equal(p.collector.buffer.observations[:-1], theirs.observations)
    for ours, expected in [
        (inputs.old_values, theirs.values),
        (inputs.old_log_probs, theirs.log_probs),
        (inputs.advantages, theirs.advantages),
        (inputs.returns, theirs.returns),
    ]:
        np.testing.assert_allclose(by_step(ours.numpy()), expected, rtol=1e-6, atol=1e-6)


@kinds
def test_their_reward_of_a_truncated_step_is_ours_and_the_discounted_value_of_where_it_ended(kind):
    p = pair(kind)
    finals = p.collector.buffer.final_observations
    assert len(finals) > 2
    expected = p.collector.buffer.rewards.copy()
    for t, i, final in finals:
        with torch.no_grad():
            expected[t, i] += p.config.gamma * p.policy.network.critic(torch.from_numpy(final)).item()
    np.testing.assert_allclose(p.theirs.rollout_buffer.rewards, expected, rtol=1e-6, atol=1e-6)


@kinds
def test_entropies_are_theirs(kind):
    p = pair(kind)
    move_weights(p.theirs.policy, by=0.3)
    take_weights(p.theirs.policy, p.policy.network)
    batch = estimates_of(p).batch
    with torch.no_grad():
        parameters, values = p.policy.network(batch.observations)
        log_probs, entropies = p.policy.distribution.log_probs_and_entropies(parameters, batch.actions)
        expected = p.theirs.policy.evaluate_actions(batch.observations, batch.actions)
    for ours, theirs in zip((values, log_probs, entropies), expected, strict=True):
        torch.testing.assert_close(ours, theirs.flatten(), rtol=1e-6, atol=1e-6)


@kinds
@pytest.mark.parametrize("clip_range_vf", [None, 0.05], ids=["", "clipped values"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=["float32", "float64"]
)
def test_losses_and_gradients_are_theirs(kind, clip_range_vf, dtype, tolerance):
    p = pair(kind, clip_range_vf=clip_range_vf, max_grad_norm=1e12)  # so that clipping leaves the gradient as it is
    their_policy, buffer = p.theirs.policy.to(dtype), p.theirs.rollout_buffer
    their_policy.features_extractor.register_forward_hook(lambda module, arguments, features: features.to(dtype))
    move_weights(their_policy, by=0.2)
    with torch.no_grad():
        values = their_policy.predict_values(torch.from_numpy(buffer.observations).flatten(0, 1)).numpy()
    if clip_range_vf is not None:  # let every value have moved towards its return; see the module
        buffer.returns = 2.0 * by_step(values) - buffer.values
    for name in ("values", "log_probs", "advantages", "returns"):
        setattr(buffer, name, torch.from_numpy(getattr(buffer, name)).to(dtype).numpy())
    minibatch = as_minibatch(p, dtype)
    take_weights(their_policy, p.policy.network.to(dtype))

    p.theirs.train()
    expected = torch.cat([weight.grad.flatten() for weight in weights_in_our_order(their_policy)])
    logged = p.theirs.logger.name_to_value
    their_names = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")
    their_terms = torch.tensor([logged[f"train/{name}"] for name in their_names], dtype=dtype) * SIGNS

    network = p.policy.network
    weights = LossWeights(p.config.clip_range, clip_range_vf, p.config.ent_coef, p.config.vf_coef)
    flatten_parameters(network.parameter_order())
    can_compile = dtype == torch.float32 and FASTEST[kind] == "compiled"
    actual = compiled_gradient(p, minibatch, weights) if can_compile else expected
    assert (actual - expected).norm() <= tolerance * expected.norm()
    for gradients in (ClosedFormGradients(network), AutogradGradients(network)):
        terms = torch.stack(loss_terms(gradients(minibatch, weights), weights.clip_range))
        torch.testing.assert_close(terms, their_terms, rtol=tolerance, atol=0)
        assert terms[-1] > 0.1  # some ratios are clipped
        actual = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        assert (actual - expected).norm() <= tolerance * expected.norm()


def compiled_gradient(p, minibatch, weights):
    network = p.policy.network
    flat = flatten_parameters(network.parameter_order())
    steps = CompiledSteps(network, FlatAdam(flat, flat.grad, epsilon=1e-5), p.config, np.random.default_rng(0))
    flat.grad.copy_(steps.gradient(minibatch, weights))
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


SIGNS = torch.tensor([1, 1, -1, 1, 1])  # what they log as the entropy's loss is minus the entropy


def as_minibatch(p, dtype):
    """Their rollout as one minibatch of ours."""
    buffer = p.theirs.rollout_buffer
    named = (buffer.log_probs, buffer.advantages, buffer.returns, buffer.values)
    inputs = LossInputs(*(torch.from_numpy(array.flatten()) for array in named))
    inputs = inputs._replace(advantages=normalize_advantages(inputs.advantages))
    actions = torch.from_numpy(as_ours(p.kind, buffer.actions)).flatten(0, 1)
    return Minibatch(torch.from_numpy(buffer.observations).flatten(0, 1).to(dtype), actions, inputs)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("minibatch_size", [20, 24])
@pytest.mark.parametrize(
    ("steps", "kind"), [(steps, kind) for kind in ACTION_SPACES for steps in dict.fromkeys(("torch", FASTEST[kind]))]
)
def test_weights_after_an_update_are_theirs(kind, minibatch_size, steps, monkeypatch):
    # 3 epochs of minibatches of 20, 20, 20, 20 and 16, or of four of 24, at a learning rate ten times the usual one
    p = pair(kind, n_epochs=3, minibatch_size=minibatch_size)
    statistics = both_updated(p, monkeypatch, progress=0.0, steps=steps)
    if minibatch_size == 20:
        return  # they log the mean over minibatches, we over samples: the same only where all are of one size
    logged = p.theirs.logger.name_to_value
    assert statistics.policy_loss == pytest.approx(logged["train/policy_gradient_loss"], abs=1e-5)
    assert statistics.value_loss == pytest.approx(logged["train/value_loss"], rel=1e-4)
    assert statistics.entropy == pytest.approx(-logged["train/entropy_loss"], rel=1e-5)


@pytest.mark.parametrize("steps", ["torch", "compiled"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize(
    "network", [*({"activation": name} for name in ACTIVATIONS), {"value_hidden_sizes": (24, 12, 8)}], ids=str
)
def test_so_they_are_by_any_activation_and_with_a_value_network_of_its_own(network, kind, steps, monkeypatch):
    both_updated(pair(kind, n_epochs=3, minibatch_size=24, **network), monkeypatch, progress=0.0, steps=steps)


THEIR_SCHEDULES = {
    "linear": lambda start: LinearSchedule(start, end=0.0, end_fraction=1.0),
    "cosine": lambda start: lambda left: start * (1 - math.cos(math.pi * left)) / 2,  # which they have not
}


@kinds
@pytest.mark.parametrize("schedule", THEIR_SCHEDULES)
def test_weights_after_an_update_late_in_training_are_theirs(kind, schedule, monkeypatch):
    p = pair(kind, n_epochs=3, minibatch_size=24)
    p = p._replace(config=replace(p.config, learning_rate_schedule=schedule, clip_range_schedule=schedule))
    p.theirs.lr_schedule, p.theirs.clip_range = (THEIR_SCHEDULES[schedule](start) for start in (3e-3, 0.2))
    p.theirs._current_progress_remaining = 0.4
    statistics = both_updated(p, monkeypatch, progress=0.6, steps=FASTEST[kind])
    left = 0.4 if schedule == "linear" else (1 - math.cos(0.4 * math.pi)) / 2
    logged = p.theirs.logger.name_to_value
    assert logged["train/learning_rate"] == pytest.approx(3e-3 * left) == pytest.approx(statistics.learning_rate)
    assert logged["train/clip_range"] == pytest.approx(0.2 * left) == pytest.approx(statistics.clip_range)


def test_their_functions_are_ours(monkeypatch):
    p = pair("box", n_epochs=3, minibatch_size=24)
    rate, clip_range = LinearSchedule(3e-3, end=1e-3, end_fraction=0.8), lambda left: 0.1 + 0.1 * left**2
    p = p._replace(config=replace(p.config, learning_rate=rate, clip_range=clip_range))
    p.theirs.lr_schedule, p.theirs.clip_range = rate, clip_range
    p.theirs._current_progress_remaining = 0.4
    statistics = both_updated(p, monkeypatch, progress=0.6, steps="compiled")
    logged = p.theirs.logger.name_to_value
    assert statistics.learning_rate == pytest.approx(1.5e-3) == pytest.approx(logged["train/learning_rate"])
    assert statistics.clip_range == pytest.approx(0.116) == pytest.approx(logged["train/clip_range"])


def both_updated(p, monkeypatch, *, progress, steps):
    """Let both learn from their rollout in the same order, and compare weights; what ours says of it."""
    before = flat_weights(p.theirs.policy)
    same_orders = np.random.default_rng(7)

    def their_order(n_samples):
        ours = same_orders.permutation(n_samples)
        return ours % NUM_ENVS * N_STEPS + ours // NUM_ENVS

    monkeypatch.setattr(np.random, "permutation", their_order)
    p.theirs.train()
    if steps == "torch":
        monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)
    update = PPOUpdate(p.policy, p.config, fastest_steps(p.policy, p.config, np.random.default_rng(7)))
    assert update.state_dict()["steps"] == steps
    statistics = update(estimates_of(p).batch, progress=progress)
    after = flat_weights(p.theirs.policy)
    ours = torch.cat([weight.detach().flatten() for weight in p.policy.network.parameters()])
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(ours, after, rtol=0, atol=1e-5)
    return statistics


def flat_weights(their_policy):
    return torch.cat([weight.detach().flatten() for weight in weights_in_our_order(their_policy)])
