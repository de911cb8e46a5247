"""The update against a plain loop of autograd and torch's own Adam, and its schedules and stops."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import LostFunction
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, TrainingFailed
from ml_pipeline.models.rl.update import ppo_update
from ml_pipeline.models.rl.update.ppo_loss import LossWeights, normalize_advantages, ppo_loss
from ml_pipeline.models.rl.update.ppo_update import PPOUpdate, adapted, fastest_steps, of_function, scheduled

pytestmark = pytest.mark.usefixtures("kind")
N_SAMPLES = 40
CONFIG = PPOConfig(minibatch_size=16, n_epochs=2, ent_coef=0.01, learning_rate=1e-2)  # 16 + 16 + 8 an epoch


@pytest.fixture(params=["torch", "compiled"])
def kind(request, monkeypatch):
    """Both ways to take the steps."""
    if request.param == "torch":
        monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)
    return request.param


def make_policy(action_space):
    kind = PPOConfig(hidden_sizes=(8, 8), normalize_obs=False)
    return Policy(spaces.Box(-1, 1, (3,)), action_space, kind, seed=1)


def rollout_of(policy, seed=0):
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(N_SAMPLES, 3, generator=generator)
    if isinstance(policy.action_space, spaces.Discrete):
        actions = torch.randint(2, (N_SAMPLES,), generator=generator)
    else:
        actions = torch.randn(N_SAMPLES, 2, generator=generator)
    with torch.no_grad():
        parameters, values = policy.network(observations)
        log_probs, _ = policy.distribution.log_probs_and_entropies(parameters, actions)
    advantages, noise = torch.randn(2, N_SAMPLES, generator=generator)
    return Minibatch(observations, actions, LossInputs(log_probs, advantages, values + noise, values))


def update_for(policy, config=CONFIG, *, seed=0):
    return PPOUpdate(policy, config, fastest_steps(policy, config, np.random.default_rng(seed)))


def weights_of(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.network.parameters()])


@pytest.mark.parametrize("action_space", [spaces.Discrete(2), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
def test_equals_a_plain_loop_of_autograd_and_adam(action_space, kind):
    policy, plain = make_policy(action_space), make_policy(action_space)
    batch = rollout_of(policy)
    update = update_for(policy, seed=7)
    statistics = update(batch, progress=0.0)
    assert update.state_dict()["steps"] == kind

    optimizer = torch.optim.Adam(plain.network.parameters(), lr=1e-2, eps=1e-5)
    generator = np.random.default_rng(7)
    for _ in range(CONFIG.n_epochs):
        order = generator.permutation(N_SAMPLES)
        for start in (0, 16, 32):
            rows = torch.from_numpy(order[start : start + 16])
            inputs = LossInputs(*(x[rows] for x in batch.inputs))
            inputs = inputs._replace(advantages=normalize_advantages(inputs.advantages))
            parameters, values = plain.network(batch.observations[rows])
            log_probs, entropies = plain.distribution.log_probs_and_entropies(parameters, batch.actions[rows])
            loss, _ = ppo_loss(log_probs, entropies, values, inputs, LossWeights(0.2, None, 0.01, 0.5))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.network.parameters(), CONFIG.max_grad_norm)
            optimizer.step()
    torch.testing.assert_close(weights_of(policy), weights_of(plain), rtol=1e-4, atol=1e-6)
    assert statistics.n_minibatches == 6


def test_the_first_ratio_is_one():
    policy = make_policy(spaces.Discrete(2))
    batch = rollout_of(policy)
    with torch.no_grad():
        parameters, _ = policy.network(batch.observations[:16])
        log_probs, _ = policy.distribution.log_probs_and_entropies(parameters, batch.actions[:16])
    torch.testing.assert_close((log_probs - batch.inputs.old_log_probs[:16]).exp(), torch.ones(16), rtol=0, atol=1e-6)


def test_a_policy_that_contradicts_its_rollout_is_told():
    policy = make_policy(spaces.Discrete(2))
    batch = rollout_of(policy)
    batch = batch._replace(inputs=batch.inputs._replace(old_log_probs=batch.inputs.old_log_probs - 0.1))
    with pytest.raises(TrainingFailed, match="probabilities with which it acted"):
        update_for(policy)(batch, progress=0.0)


@pytest.mark.parametrize("field", ["advantages", "returns", "old_log_probs"])
def test_not_a_number_is_told(field):
    policy = make_policy(spaces.Discrete(2))
    batch = rollout_of(policy)
    broken = getattr(batch.inputs, field).clone()
    broken[5] = float("nan")
    batch = batch._replace(inputs=batch.inputs._replace(**{field: broken}))
    with pytest.raises(TrainingFailed, match="No longer finite"):
        update_for(policy)(batch, progress=0.0)


def test_target_kl_stops_before_the_step_that_would_go_further():
    policy = make_policy(spaces.Discrete(2))
    batch = rollout_of(policy)
    config = dataclasses.replace(CONFIG, target_kl=1e-6, learning_rate=0.1)
    statistics = update_for(policy, config)(batch, progress=0.0)
    assert statistics.n_minibatches == 1  # the first has a KL of 0; after its step the second is too far


def test_gradients_are_clipped_to_their_norm():
    # Adam's first step is lr * g / (|g| + eps): with a norm of 1e-9, far below eps, it hardly moves.
    policy = make_policy(spaces.Discrete(2))
    before = weights_of(policy)
    config = dataclasses.replace(CONFIG, max_grad_norm=1e-9, n_epochs=1, minibatch_size=N_SAMPLES)
    update_for(policy, config)(rollout_of(policy), progress=0.0)
    assert (weights_of(policy) - before).abs().max() < 1e-2 * 1e-3


def test_the_schedule_reaches_the_optimizer_and_the_clip_range():
    policy = make_policy(spaces.Discrete(2))
    config = dataclasses.replace(CONFIG, learning_rate_schedule="linear", clip_range_schedule="linear")
    before = weights_of(policy)
    statistics = update_for(policy, config)(rollout_of(policy), progress=1.0)
    assert (statistics.learning_rate, statistics.clip_range) == (0.0, 0.0)
    assert torch.equal(weights_of(policy), before)


def test_functions_reach_the_optimizer_the_clip_range_and_the_weight_of_the_entropy():
    policies = [make_policy(spaces.Discrete(2)) for _ in range(2)]
    numbers = dataclasses.replace(CONFIG, learning_rate=2.5e-3, clip_range=0.05, ent_coef=0.03)
    functions = dataclasses.replace(
        CONFIG, learning_rate=lambda left: 1e-2 * left, clip_range=lambda left: 0.2 * left,
        ent_coef=lambda left: 0.04 * (1 - left),
    )  # fmt: skip
    for policy, config in zip(policies, (numbers, functions), strict=True):
        statistics = update_for(policy, config)(rollout_of(policy), progress=0.75)
        assert (statistics.learning_rate, statistics.clip_range) == (2.5e-3, 0.05)
    assert torch.equal(*map(weights_of, policies))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [(lambda left: "fast", "must be a number"), (LostFunction("learning_rate", "warm_up"), "pass it again")],
)
def test_a_function_that_cannot_be_used_is_told_before_any_step(function, sentence):
    with pytest.raises(UserError, match=sentence):
        update_for(make_policy(spaces.Discrete(2)), dataclasses.replace(CONFIG, learning_rate=function))


def test_a_restored_update_goes_on_with_the_same_bits():
    policy = make_policy(spaces.Discrete(2))
    update = update_for(policy)
    update(rollout_of(policy), progress=0.0)
    other_policy = make_policy(spaces.Discrete(2))
    other = update_for(other_policy, seed=1)
    other_policy.load_state_dict(policy.state_dict())
    other.load_state_dict(update.state_dict())
    batch = rollout_of(policy, seed=1)
    update(batch, progress=0.5)
    other(batch, progress=0.5)
    assert torch.equal(weights_of(policy), weights_of(other_policy))


def test_an_adaptive_learning_rate_follows_the_kl_and_is_saved():
    policy = make_policy(spaces.Discrete(2))
    config = dataclasses.replace(CONFIG, learning_rate_schedule="adaptive", target_kl=100.0)
    update = update_for(policy, config)
    rates = [update(rollout_of(policy, seed), progress=0.9).learning_rate for seed in range(2)]
    assert rates == pytest.approx([1e-2, 1.5e-2])  # far below the target
    other = update_for(policy, config)
    other.load_state_dict(update.state_dict())
    assert other(rollout_of(policy), progress=0.9).learning_rate == pytest.approx(2.25e-2)


def test_the_entropys_weight_follows_its_schedule():
    policies = [make_policy(spaces.Discrete(2)) for _ in range(2)]
    for policy, settings in zip(policies, [{"ent_coef_schedule": "linear"}, {"ent_coef": 0.0}], strict=True):
        config = dataclasses.replace(CONFIG, **settings)
        update_for(policy, config)(rollout_of(policy), progress=1.0)
    assert torch.equal(*map(weights_of, policies))


BY_HAND = {"constant": 1.0, "linear": 0.75, "cosine": (1 + math.cos(0.25 * math.pi)) / 2}


@pytest.mark.parametrize("setting", ["learning_rate", "clip_range", "ent_coef"])
@pytest.mark.parametrize("schedule", BY_HAND)
def test_a_quarter_into_training_schedules_are_where_their_formulas_say(setting, schedule):
    policies = [make_policy(spaces.Discrete(2)) for _ in range(2)]
    start = {"learning_rate": 0.01, "clip_range": 0.01, "ent_coef": 0.5}[setting]
    scheduled, by_hand = (
        dataclasses.replace(CONFIG, **{setting: start, f"{setting}_schedule": schedule}),
        dataclasses.replace(CONFIG, **{setting: start * BY_HAND[schedule]}),
    )
    for policy, config in zip(policies, (scheduled, by_hand), strict=True):
        update_for(policy, config)(rollout_of(policy), progress=0.25)
    torch.testing.assert_close(*map(weights_of, policies), rtol=0, atol=1e-6)
    if schedule != "constant":  # and that value shows
        other = make_policy(spaces.Discrete(2))
        update_for(other, scheduled)(rollout_of(other), progress=0.0)
        assert (weights_of(other) - weights_of(policies[1])).abs().max() > 1e-4


def test_advantages_may_be_normalized_over_the_whole_batch():
    policies = [make_policy(spaces.Discrete(2)) for _ in range(2)]
    batch = rollout_of(policies[0])
    over_batch = dataclasses.replace(CONFIG, normalize_advantages_over="batch")
    update_for(policies[0], over_batch)(batch, progress=0.0)
    by_hand = batch._replace(inputs=batch.inputs._replace(advantages=normalize_advantages(batch.inputs.advantages)))
    as_they_are = dataclasses.replace(CONFIG, normalize_advantages=False)
    update_for(policies[1], as_they_are)(by_hand, progress=0.0)
    assert torch.equal(*map(weights_of, policies))


def test_going_on_by_other_steps_is_told(kind):
    state = update_for(make_policy(spaces.Discrete(2))).state_dict()
    update = update_for(make_policy(spaces.Discrete(2)))
    update.load_state_dict(state)
    with pytest.warns(UserWarning, match=f"written by other steps and continues with {kind} ones"):
        update.load_state_dict({**state, "steps": "other"})


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.75, 0.4),
        ("linear", 0.0, 0.4),
        ("linear", 0.75, 0.1),
        ("linear", 1.5, 0.0),  # trained past the planned end
        ("cosine", 0.0, 0.4),
        ("cosine", 0.5, 0.2),
        ("cosine", 0.75, 0.4 * 0.5 * (1 - 0.5**0.5)),  # cos(pi / 4)
        ("cosine", 1.0, 0.0),
        ("cosine", 1.5, 0.0),
    ],
)
def test_schedules(schedule, progress, expected):
    assert scheduled(0.4, schedule, progress) == pytest.approx(expected)


def test_a_function_gets_the_share_of_training_that_is_left():
    seen = [of_function("clip_range", lambda left: left, progress) for progress in (0.0, 0.25, 1.0, 1.5)]
    assert seen == [1.0, 0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "sentence"), [(-1, "at least 0 and finite, but got -1"), (np.nan, "got nan"), (None, "but got None")]
)
def test_a_function_that_gives_no_number_is_told_with_the_place(value, sentence):
    with pytest.raises(UserError, match=rf"learning_rate\(0\.75\) must be .*{sentence}"):
        of_function("learning_rate", lambda left: value, 0.25)


def test_the_learning_rate_is_lowered_by_a_third_and_raised_by_half_and_bounded():
    assert adapted(3.0, approx_kl=0.021, target_kl=0.01) == 2.0
    assert adapted(2.0, approx_kl=0.004, target_kl=0.01) == 3.0
    assert adapted(2.0, approx_kl=0.02, target_kl=0.01) == 2.0
    assert adapted(0.0101, approx_kl=1.0, target_kl=0.01) == 0.01
