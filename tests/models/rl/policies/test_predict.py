"""`Policy.predict` has the signature and the meaning of Stable-Baselines3's."""

import inspect

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy

NUMBERS = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict(
    a=spaces.Discrete(3, start=2),
    b=spaces.Tuple((spaces.MultiBinary(4), spaces.Box(-1, 1, (2, 2), np.float64))),
    c=spaces.MultiDiscrete([2, 3]),
    d=spaces.Box(-1, 1, ()),
)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
ACTIONS = spaces.Dict(go=spaces.Discrete(3, start=4), push=spaces.Box(-0.5, 0.5, (2,)))


def make(observation_space=NUMBERS, action_space=ACTIONS, *, seed=0, **settings):
    return Policy(observation_space, action_space, PPOConfig(**{"hidden_sizes": (8,), **settings}), seed=seed)


def samples(space, n):
    space.seed(0)
    return [space.sample() for _ in range(n)]


def batched(space, observations):
    return concatenate(space, observations, create_empty_array(space, len(observations)))


def rows(action_space, actions, n):
    return list(iterate(batch_space(action_space, n), actions))


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return np.allclose(one, other, atol=1e-6)


def test_the_signature_is_that_of_stable_baselines3():
    policies = pytest.importorskip("stable_baselines3.common.policies")
    ours, theirs = (inspect.signature(each.predict).parameters for each in (Policy, policies.BasePolicy))
    assert [(each.name, each.default) for each in ours.values()] == [
        (each.name, each.default) for each in theirs.values()
    ]


@pytest.mark.parametrize("space", [NUMBERS, NESTED, IMAGE, spaces.Discrete(5, start=1)], ids=str)
def test_deterministic_actions_of_a_batch_are_those_of_act(space):
    policy, observations = make(space), samples(space, 7)
    alone = [policy.predict(observation, deterministic=True) for observation in observations]
    together, state = policy.predict(batched(space, observations), deterministic=True)
    acted = [policy.act(observation) for observation in observations]
    assert state is None
    for one, action, (single, no_state) in zip(acted, rows(ACTIONS, together, 7), alone, strict=True):
        assert equal(one, single)
        assert equal(one, action)
        assert no_state is None
        assert ACTIONS.contains(single)


def test_actions_are_sampled_by_default_from_a_generator_that_can_be_seeded():
    policy, batch = make(), batched(NUMBERS, samples(NUMBERS, 50))
    policy.generator = np.random.default_rng(5)
    first, second = (policy.predict(batch)[0]["push"] for _ in range(2))
    policy.generator = np.random.default_rng(5)
    assert np.array_equal(policy.predict(batch)[0]["push"], first)
    assert not np.array_equal(second, first)
    assert np.array_equal(make().predict(batch)[0]["go"], make().predict(batch)[0]["go"])
    assert ACTIONS.contains(policy.predict(batch[0])[0])


def test_sampling_follows_the_distribution_and_leaves_the_global_generator_alone():
    policy = make(action_space=spaces.Discrete(4))
    observation = NUMBERS.sample()
    logits = policy.parameters(policy.observations.process_one(observation))[0].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    before = np.random.get_state()[1].copy()
    actions, _ = policy.predict(np.repeat(observation[None], 20_000, axis=0))
    assert np.array_equal(np.random.get_state()[1], before)
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, expected, atol=0.02)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_memory_is_handed_back_and_reset_where_episodes_start(memory):
    policy = make(memory=memory, memory_size=5)
    steps = [batched(NUMBERS, samples(NUMBERS, 12)[i : i + 3]) for i in range(0, 12, 3)]  # 4 steps of 3 environments
    starts = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]], np.bool_)
    state, found = None, []
    for observations, start in zip(steps, starts, strict=True):
        actions, state = policy.predict(observations, state, start, deterministic=True)
        found.append(rows(ACTIONS, actions, 3))
    for i in range(3):
        for t in range(4):
            if starts[t, i]:
                policy.act.begin_episode()
            assert equal(policy.act(steps[t][i]), found[t][i])


def test_the_state_that_was_handed_in_is_unchanged_and_none_starts_episodes():
    policy, observation = make(memory="gru", memory_size=5), NUMBERS.sample()
    first, state = policy.predict(observation, deterministic=True)
    kept = state[0].copy()
    again, _ = policy.predict(observation, state=state, deterministic=True)
    assert np.array_equal(state[0], kept)
    assert not equal(first, again)
    anew, _ = policy.predict(observation, state=state, episode_start=np.array([True]), deterministic=True)
    assert equal(first, anew)


def test_masks_in_the_observation_forbid_actions():
    space = spaces.Dict(x=NUMBERS, action_mask=spaces.Box(0, 1, (3,), np.int8))
    policy = make(space, spaces.Discrete(3))
    masks = np.eye(3, dtype=np.int8)[np.arange(300) % 3]
    actions, _ = policy.predict({"x": np.zeros((300, 3), np.float32), "action_mask": masks})
    assert np.array_equal(actions, np.arange(300) % 3)


def test_evaluate_policy_of_stable_baselines3_takes_a_policy():
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    with gymnasium.make("CartPole-v1") as env:
        for settings in ({}, {"memory": "lstm"}):
            policy = make(env.observation_space, env.action_space, **settings)
            returns, lengths = evaluation.evaluate_policy(
                policy, monitor.Monitor(env), n_eval_episodes=2, return_episode_rewards=True
            )
            assert returns == lengths


@pytest.mark.parametrize(
    ("space", "observation", "sentence"),
    [
        (NUMBERS, np.zeros(4), r"Expected an observation in Box\(3,\), or a batch of .*, but got shape \(4,\)\."),
        (NUMBERS, (np.zeros(3), {}), "but got tuple; reset.. returns the observation and a dict, so pass only the fir"),
        (NUMBERS, {"a": 1}, "but got dict"),
        (NUMBERS, np.zeros((2, 2, 3)), r"but got shape \(2, 2, 3\)"),
        (spaces.Dict(a=NUMBERS, b=NUMBERS), {"a": np.zeros(3)}, "Expected an observation in Dict.* but got dict"),
        (spaces.Dict(a=NUMBERS), {"a": np.zeros(2)}, r'Expected the part "a" of an observation in Box\(3,\)'),
        (
            spaces.Dict(a=NUMBERS, b=NUMBERS),
            {"a": np.zeros((2, 3)), "b": np.zeros(3)},
            "must have equally many rows, but are a batch of 2, one observation",
        ),
    ],
)
def test_an_observation_of_another_form_is_refused_in_a_sentence(space, observation, sentence):
    with pytest.raises(UserError, match=sentence):
        make(space).predict(observation)


def test_a_state_of_another_shape_is_refused_in_a_sentence():
    policy = make(memory="gru", memory_size=5)
    with pytest.raises(UserError, match=r"state must have shape \(2, 10\), one row per observation, but has \(1, 10\)"):
        policy.predict(np.zeros((2, 3)), (np.zeros((1, 10)),))
    with pytest.raises(UserError, match=r"episode_start must have shape \(2,\)"):
        policy.predict(np.zeros((2, 3)), None, np.array([True]))
