"""Compiled recurrent networks against torch's, and with themselves whoever else acts."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.acting import ActingMemory
from ml_pipeline.models.rl.policies.compiled_networks import CompiledMemory, can_compile
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.transitions import Sequences

OBSERVATIONS = spaces.Box(-1, 1, (5,))
CHOICES, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
kinds = pytest.mark.parametrize("kind", ["gru", "lstm"])
sharing = pytest.mark.parametrize("share_layers", [False, True], ids=["separate", "shared"])


def compiled_policy(action_space=CHOICES, **settings):
    policy = Policy(OBSERVATIONS, action_space, PPOConfig(hidden_sizes=(20,), **settings))
    policy.compile()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    policy.refresh()
    return policy


@kinds
@sharing
@pytest.mark.parametrize(("size", "n_steps", "num_envs"), [(64, 30, 9), (7, 1, 4), (20, 12, 1), (4, 3, 700)])
def test_outputs_and_states_are_those_of_torch(kind, share_layers, size, n_steps, num_envs):
    policy = compiled_policy(memory=kind, memory_size=size, share_layers=share_layers)
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(n_steps, num_envs, 5, generator=generator)
    starts = torch.rand(n_steps, num_envs, generator=generator) < 0.2
    sequences = Sequences(starts, torch.randn(num_envs, policy.network.state_size, generator=generator))
    with torch.no_grad():
        expected = policy.network.over_sequences(observations.flatten(0, 1), sequences)
    found = policy.recurrent.over_sequences(observations, sequences)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@kinds
@sharing
@pytest.mark.parametrize("action_space", [CHOICES, NUMBERS], ids=["discrete", "box"])
def test_the_bits_of_a_row_do_not_depend_on_who_else_acts(kind, share_layers, action_space):
    policy = compiled_policy(action_space, memory=kind, share_layers=share_layers)
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(3, 1024, 5)).astype(np.float32)
    noise = policy.distribution.draw_noise(generator, (3, 1024))

    def act(rows):
        memory = policy.new_rollout_memory(rows.stop - rows.start)
        actions = [policy.choose(observations[t, rows], noise[t, rows], memory) for t in range(3)]
        return np.stack(actions), memory.state

    actions, state = act(slice(0, 1024))
    for n in (1, 3, 8, 31):
        parts = [act(slice(start, min(start + n, 1024))) for start in range(0, 1024, n)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts], axis=1), actions)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), state)


@kinds
def test_acting_step_by_step_gives_the_bits_of_the_whole_rollout(kind):
    """So that the policy agrees with its own rollout to the last bit."""
    policy = compiled_policy(memory=kind, memory_size=24)
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(6, 5, 5)).astype(np.float32)
    done = generator.random((6, 5)) < 0.3
    memory, parameters, states = policy.new_rollout_memory(5), [], []
    for t in range(6):
        parameters.append(policy.parameters(observations[t], memory))
        states.append(memory.state)
        memory.forget(done[t])
    starts = torch.from_numpy(np.concatenate([np.zeros((1, 5), bool), done[:-1]]))
    sequences = Sequences(starts, torch.zeros(5, policy.network.state_size))
    found, _, found_states = policy.recurrent.over_sequences(torch.from_numpy(observations), sequences)
    np.testing.assert_array_equal(np.concatenate(parameters), found)
    np.testing.assert_array_equal(np.stack(states), found_states)


def test_a_step_leaves_the_state_before_it_as_it_was():
    policy = compiled_policy(memory="gru")
    memory = policy.new_rollout_memory(2)
    before = memory.state
    policy.parameters(np.ones((2, 5), np.float32), memory)
    assert not before.any()
    assert memory.state.all()


def test_only_collecting_is_compiled():
    """An evaluation within a training has the bits of one by a policy that is loaded."""
    policy = compiled_policy(memory="gru")
    assert type(policy.new_memory(1)) is ActingMemory
    assert type(policy.new_rollout_memory(1)) is CompiledMemory
    policy.act.begin_episode()
    assert type(policy.act._memory) is ActingMemory
    assert type(Policy(OBSERVATIONS, CHOICES, PPOConfig(memory="gru")).new_rollout_memory(1)) is ActingMemory


def test_what_can_be_compiled():
    gru = PPOConfig(memory="gru")
    masked = spaces.Dict(observation=OBSERVATIONS, action_mask=spaces.Box(0, 1, (3,), np.int8))
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    assert can_compile(Policy(OBSERVATIONS, CHOICES, gru).network)
    assert can_compile(Policy(OBSERVATIONS, NUMBERS, PPOConfig(memory="lstm", share_layers=True)).network)
    assert can_compile(Policy(OBSERVATIONS, CHOICES, PPOConfig(memory="lstm", memory_size=256)).network)
    assert not can_compile(Policy(OBSERVATIONS, CHOICES, PPOConfig(memory="lstm", memory_size=512)).network)
    assert not can_compile(Policy(OBSERVATIONS, NUMBERS, PPOConfig(memory="gru", squash_actions=True)).network)
    assert not can_compile(Policy(OBSERVATIONS, spaces.MultiDiscrete([2, 2]), gru).network)
    assert not can_compile(Policy(masked, CHOICES, gru).network)
    assert not can_compile(Policy(image, CHOICES, gru).network)
    assert not can_compile(Policy(OBSERVATIONS, CHOICES, gru).network.double())
