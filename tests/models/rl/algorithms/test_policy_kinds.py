"""Every kind of policy and action in a trainer: exact resumption, the same bits with workers, memory that is used."""

from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.policies import policy as policy_module
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.estimates import compute_gae, estimate
from ml_pipeline.models.rl.rollout.host_collector import HostCollector
from ml_pipeline.models.rl.transitions import Sequences
from ml_pipeline.models.rl.update import ppo_update
from ml_pipeline.runtime.user_code import load_user_file

NUM_ENVS, N_ITERATIONS, N_STEPS = 3, 3, 8
VECTOR = spaces.Box(-9, 9, (2,))
NESTED = spaces.Dict(
    a=spaces.Discrete(3),
    b=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)]),
    c=spaces.MultiDiscrete([2, 3]),
)


def layers_with_norm(space):
    return nn.Sequential(nn.Linear(spaces.flatdim(space), 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5))


class of_parts(nn.Module):  # noqa: N801 - used as a function
    """Branches by key; n tensors of features."""

    def __init__(self, space, n=1):
        super().__init__()
        self.branches = nn.ModuleDict({key: nn.Linear(spaces.flatdim(part), 4) for key, part in space.spaces.items()})
        self.n = n

    def forward(self, seen):
        self.kept = {key: branch(seen[key].flatten(1)) for key, branch in self.branches.items()}  # not for threads
        features = torch.cat(list(self.kept.values()), dim=1).tanh()
        return [features, features * 2][: self.n] if self.n > 1 else features


Attention = load_user_file(Path(__file__).parents[4] / "examples" / "attention_memory.py").Attention


class Kind(NamedTuple):
    action_space: spaces.Space = spaces.Discrete(3)
    settings: dict = {}  # noqa: RUF012 - a constant
    masked: bool = False
    image: bool = False
    numbers: bool = True


KINDS = {
    "nested actions": Kind(NESTED),
    "squashed": Kind(spaces.Box(-2, 1, (2,)), {"squash_actions": True, "ent_coef": 0.01}),
    "noise by state": Kind(spaces.Box(-2, 1, (2,)), {"use_sde": True, "sde_sample_freq": 3, "ent_coef": 0.01}),
    "noise by state, gru": Kind(spaces.Box(-2, 1, (2,)), {"use_sde": True, "memory": "gru", "memory_size": 4}),
    "noise by state, frames": Kind(spaces.Box(-2, 1, (2,)), {"use_sde": True}, image=True, numbers=False),
    "shared layers": Kind(settings={"share_layers": True}),
    "own value network": Kind(settings={"value_hidden_sizes": (5, 9)}),
    "masked, own value network": Kind(
        masked=True, action_space=spaces.Discrete(4), settings={"value_hidden_sizes": (5,)}
    ),
    "masked": Kind(spaces.MultiDiscrete([3, 2]), masked=True),
    "image": Kind(image=True),
    "frames": Kind(image=True, numbers=False),
    "frames, own encoders": Kind(image=True, numbers=False, settings={"share_encoder": False}),
    "image in bfloat16": Kind(image=True, settings={"bfloat16": True}),
    "gru": Kind(settings={"memory": "gru", "memory_size": 4}),
    "lstm, shared, in parts": Kind(
        settings={"memory": "lstm", "memory_size": 4, "share_layers": True, "sequence_length": 4}
    ),
    "lstm, masked, shared": Kind(masked=True, settings={"memory": "lstm", "memory_size": 4, "share_layers": True}),
    "user's network": Kind(settings={"network": layers_with_norm, "hidden_sizes": ()}),
    "user's networks, image, gru": Kind(
        image=True, settings={"network": of_parts, "share_encoder": False, "memory": "gru", "memory_size": 4}
    ),
    "user's network of two tensors, masked": Kind(
        masked=True, action_space=spaces.Discrete(4), settings={"network": of_parts, "network_kwargs": {"n": 2}}
    ),
    "user's memory, in parts": Kind(
        settings={"network": Attention, "network_kwargs": {"n": 3, "width": 4}, "sequence_length": 4}
    ),
    "user's memories": Kind(settings={"network": Attention, "network_kwargs": {"n": 2}, "share_encoder": False}),
    "gru, masked, in parts": Kind(masked=True, settings={"memory": "gru", "memory_size": 4, "sequence_length": 2}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


class Drift(gymnasium.Env):
    """A seeded random walk with terminations and truncations; it insists on its action space and its mask."""

    def __init__(self, kind):
        self.kind = kind
        self.action_space = kind.action_space
        parts = {"position": VECTOR}
        if kind.masked:
            parts["action_mask"] = spaces.MultiBinary(spaces.flatdim(kind.action_space))
        if kind.image:
            parts["eye"] = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = spaces.Dict(parts) if len(parts) > 1 else VECTOR
        if not kind.numbers:
            self.observation_space = parts["eye"]

    def _observe(self):
        position = np.clip(self.position, -9, 9)
        if not self.kind.numbers:
            return np.full((36, 36, 1), int(100 + 10 * position[0]), np.uint8)
        if not isinstance(self.observation_space, spaces.Dict):
            return position
        observation = {"position": position}
        if self.kind.masked:
            self.mask = (self.np_random.random(self.observation_space["action_mask"].n) < 0.5).astype(np.int8)
            self.mask[[0, -1]] = 1  # the first choice of the first part, the last of the last
            observation["action_mask"] = self.mask
        if self.kind.image:
            observation["eye"] = np.full((36, 36, 1), int(100 + 10 * position[0]), np.uint8)
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = self.np_random.normal(size=2).astype(np.float32), 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        if self.kind.masked:
            one_hot = spaces.flatten(self.action_space, action)
            assert (one_hot <= self.mask).all(), (action, self.mask)
        self.t += 1
        self.position += self.np_random.normal(size=2).astype(np.float32)
        self.position += 0.1 * np.float32(spaces.flatten(self.action_space, action).sum())
        terminated, truncated = bool(abs(self.position[0]) > 4), self.t >= 5
        return self._observe(), -float(abs(self.position[1])), terminated, truncated, {}


def factories(kind):
    env_class, chosen = Drift, KINDS[kind]  # here, so that it travels by value to workers
    return [lambda: env_class(chosen)] * NUM_ENVS


def config_for(kind):
    settings = {"hidden_sizes": (8,), **KINDS[kind].settings}
    return PPOConfig(n_steps=N_STEPS, minibatch_size=10, n_epochs=2, **settings)


def trainer_for(kind, envs, *, seed=3):
    return PPOTrainer(envs, config_for(kind), total_timesteps=N_ITERATIONS * N_STEPS * envs.num_envs, seed=seed)


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()])


@pytest.mark.slow
@kinds
def test_an_interrupted_run_gone_on_with_by_workers_equals_the_uninterrupted_one(kind, tmp_path):
    expected = trainer_for(kind, SerialEnv(factories(kind)))
    before = weights_of(expected)
    expected.train()
    assert not torch.equal(weights_of(expected), before)
    for n_steps in (1, N_STEPS, N_STEPS + 3) if kind in {"nested actions", "gru"} else (N_STEPS + 3,):
        envs = SerialEnv(factories(kind))
        interrupted = trainer_for(kind, envs)
        stop_in(n_steps, interrupted, envs)
        interrupted.train()
        assert not interrupted.finished
        torch.save(interrupted.state_dict(), tmp_path / "state.pt")
        envs = ParallelEnv(factories(kind), num_workers=2 * (n_steps == N_STEPS), copy=False)
        resumed = trainer_for(kind, envs, seed=99)
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))  # pickles of environments
        # Compared itself: a new policy's actions hardly depend on what it remembers.
        before, after = (each.state_dict()["collector"]["memory"] for each in (interrupted, resumed))
        assert (before is None and after is None) or torch.equal(before, after)
        resumed.train()
        assert resumed.finished
        envs.close()
        assert torch.equal(weights_of(resumed), weights_of(expected)), n_steps


def stop_in(n_steps, trainer, envs):
    step, left = envs.step, iter(range(n_steps - 1, -1, -1))

    def counting(actions):
        if next(left, None) == 0:
            trainer.request_stop()
        return step(actions)

    envs.step = counting


@kinds
def test_an_evaluation_plays_within_the_space(kind):
    envs = SerialEnv(factories(kind))
    trainer = trainer_for(kind, envs)
    trainer.train()
    result = evaluate(factories(kind)[0](), trainer.policy.act, n_episodes=3, seed=0)
    assert len(result.returns) == 3
    assert result == evaluate(factories(kind)[0](), trainer.policy.act, n_episodes=3, seed=0)


def collected(kind):
    envs = SerialEnv(factories(kind))
    policy = Policy(envs.single_observation_space, envs.single_action_space, config_for(kind), seed=3)
    with torch.no_grad():
        policy.network.actor_head[-1].weight *= 100.0
    collector = HostCollector(envs, policy, config_for(kind), seed=3)
    for _ in range(2):  # so that the second begins in mid-episode, with something to remember
        assert collector.collect(should_stop=lambda: False)
    return policy, collector


recurrent = pytest.mark.parametrize("kind", ["gru", "lstm, masked, shared", "user's memories"])


@recurrent
def test_the_update_sees_the_policy_that_acted(kind):
    policy, collector = collected(kind)
    buffer = collector.buffer
    assert buffer.memory.any()
    batch = estimate(buffer, policy, gamma=0.9, gae_lambda=0.8).batch
    parameters, _, _ = policy.network.over_sequences(batch.observations, batch.sequences)
    again = policy.distribution.sample(parameters.detach().numpy(), buffer.noise.reshape(-1))
    np.testing.assert_array_equal(again, buffer.actions.reshape(-1))


@pytest.mark.parametrize("kind", ["gru", "lstm, masked, shared"])  # compiled, and in torch
@pytest.mark.parametrize("sequence_length", [1, 2, 4, 8])
def test_shorter_sequences_give_the_probabilities_and_values_of_the_whole_rollout(kind, sequence_length):
    policy, collector = collected(kind)
    settings = {"gamma": 0.9, "gae_lambda": 0.8, "sequence_length": sequence_length}
    batch = estimate(collector.buffer, policy, **settings).batch
    assert batch.sequences.starts.shape == (sequence_length, N_STEPS // sequence_length * NUM_ENVS)
    with torch.no_grad():
        parameters, values, _ = policy.network.over_sequences(batch.observations, batch.sequences)
        log_probs, _ = policy.distribution.log_probs_and_entropies(parameters, batch.actions)
    torch.testing.assert_close((log_probs, values), (batch.inputs.old_log_probs, batch.inputs.old_values))


@pytest.mark.parametrize("kind", ["gru", "lstm, shared, in parts"])
def test_compiled_memory_learns_what_it_learns_in_torch(kind, monkeypatch):
    found = {}
    for steps in ("compiled", "torch"):
        if steps == "torch":
            for module in (policy_module, ppo_update):
                monkeypatch.setattr(module, "can_compile", lambda network: False)
        trainer = trainer_for(kind, SerialEnv(factories(kind)))
        trainer.train()
        assert trainer.state_dict()["update"]["steps"] == steps
        found[steps] = weights_of(trainer)
    torch.testing.assert_close(found["compiled"], found["torch"], rtol=1e-4, atol=1e-4)


@recurrent
def test_the_value_of_a_final_observation_knows_the_episode_that_ended_there(kind):
    policy, collector = collected(kind)
    buffer = collector.buffer
    assert buffer.final_observations
    assert not buffer.truncated[-1].all()

    def step(observation, state):
        with torch.no_grad():
            sequences = Sequences(torch.zeros(1, 1, dtype=torch.bool), state)
            _, value, states = policy.network.over_sequences(torch.from_numpy(observation)[None], sequences)
        return value.item(), states[0]

    values = np.zeros((N_STEPS, NUM_ENVS), np.float32)
    next_values = np.zeros_like(values)
    finals = {(t, i): observation for t, i, observation in buffer.final_observations}
    done = buffer.terminated | buffer.truncated
    for i in range(NUM_ENVS):
        state = torch.from_numpy(buffer.memory[i : i + 1])
        for t in range(N_STEPS):
            values[t, i], state = step(buffer.observations[t, i], state)
            if (t, i) in finals:
                next_values[t, i], _ = step(finals[t, i], state)
            elif not done[t, i]:
                next_values[t, i], _ = step(buffer.observations[t + 1, i], state)
            if done[t, i]:
                state = torch.zeros_like(state)
    expected, _ = compute_gae(buffer.rewards, values, next_values, buffer.terminated, done, gamma=0.9, gae_lambda=0.8)
    found = estimate(buffer, policy, gamma=0.9, gae_lambda=0.8).batch.inputs
    np.testing.assert_allclose(found.advantages.view(N_STEPS, NUM_ENVS), expected, atol=1e-5)
    np.testing.assert_allclose(found.old_values.view(N_STEPS, NUM_ENVS), values, atol=1e-5)


class Echo(gymnasium.Env):
    """Shows one of two cues, then nothing, and asks for the cue: 1 for whoever remembers, 0.5 for all others."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1.0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), float(self.t == 3 and action == self.cue), self.t == 3, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "memory",
    [{"memory": "gru", "memory_size": 16}, {"memory": "lstm", "memory_size": 16}, {"network": Attention}],
    ids=["gru", "lstm", "attention"],
)
def test_a_policy_with_memory_learns_what_none_without_it_can(memory):
    config = PPOConfig(
        n_steps=24,
        minibatch_size=96,
        n_epochs=4,
        learning_rate=1e-2,
        hidden_sizes=(16,),
        **memory,
        normalize_rewards=False,
    )
    envs = SerialEnv([Echo] * 8)
    policy = PPOTrainer(envs, config, total_timesteps=20 * 8 * config.n_steps, seed=1).train()
    assert evaluate(Echo(), policy.act, n_episodes=20, seed=100).mean_return > 0.9
