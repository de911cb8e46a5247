"""Rollouts from environments that reset in the step after an end, against plain loops over single environments."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.estimates import estimate
from ml_pipeline.models.rl.rollout.host_collector import HostCollector
from ml_pipeline.models.rl.rollout.next_step_collector import NextStepCollector
from ml_pipeline.runtime.seeding import random_generator

N, T, SEED = 4, 12, 5


class Short(gymnasium.Env):
    """A seeded random walk whose episodes end after 1 to 9 steps, some by termination and some by truncation."""

    observation_space = spaces.Box(-99, 99, (3,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.x = int(self.np_random.integers(1, 10)), self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action):
        self.left -= 1
        self.x += self.np_random.normal(size=2) + 0.3 * (np.sum(action) - 0.5)
        is_over, terminates = self.left == 0, self.x[0] > 0
        return self.seen(), float(self.x[1]), bool(is_over and terminates), bool(is_over and not terminates), {}

    def seen(self):
        return np.array([*self.x, self.left], np.float32)


class ShortBox(Short):
    action_space = spaces.Box(-1, 1, (1,))


class Plain:
    """What the collector does, environment by environment; learns_by_step: when statistics are updated."""

    def __init__(self, policy, config):
        self.policy, self.config, self.learns_by_step = policy, config, config.normalize_update == "step"
        self.envs = [env_of(config)() for _ in range(N)]
        self.seen = list(self.learned([env.reset(seed=SEED + i)[0] for i, env in enumerate(self.envs)]))
        self.per_draw = config.steps_per_noise
        self.generator, self.memory = random_generator(SEED, "actions"), policy.new_rollout_memory(N)
        self.ended, self.discounted, self.all_discounted = [False] * N, [0.0] * N, []
        self.episodes, self.running = [], [[] for _ in range(N)]
        self.n_resets = self.n_surplus = self.n_ended_beyond = 0

    def learned(self, raw):
        raw = np.stack(raw)
        normalizer = self.policy.observations.normalizer
        return raw if normalizer is None or not self.learns_by_step else normalizer.learn_and_normalize(raw)

    def normalized(self, rows):
        return rows if self.learns_by_step else self.policy.observations.normalize(np.stack(rows))

    def rollout(self):  # noqa: PLR0912 - one plain loop
        """For each environment its T transitions, and what its last value is bootstrapped from."""
        noise = self.policy.distribution.draw_noise(self.generator, (-(-T // self.per_draw), N))
        taken, after, new_beyond = [[] for _ in range(N)], [None] * N, [False] * N
        while min(map(len, taken)) < T:
            surplus = [i for i in range(N) if not self.ended[i] and len(taken[i]) == T]
            own = [noise[min(len(taken[i]), T - 1) // self.per_draw][i] for i in range(N)]
            if surplus and self.per_draw == 1:
                for i, extra in zip(
                    surplus, self.policy.distribution.draw_noise(self.generator, (len(surplus),)), strict=True
                ):
                    own[i] = extra
            actions = self.policy.choose(self.normalized(np.stack(self.seen)), np.stack(own), self.memory)
            fitted = self.policy.fit_actions(actions)
            raw, done = [], []
            for i, env in enumerate(self.envs):
                if self.ended[i]:
                    raw.append(env.reset()[0])
                    done.append(False)
                    self.memory and self.memory.forget(np.arange(N) == i)
                    self.n_resets += 1
                    continue
                observation, reward, terminated, truncated, _ = env.step(fitted[i])
                raw.append(observation)
                done.append(terminated or truncated)
                self.running[i].append(reward)
                if done[i]:
                    self.episodes.append((i, sum(self.running[i]), len(self.running[i])))
                    self.running[i] = []
                    self.memory and self.memory.forget(np.arange(N) == i)
                if i in surplus:
                    self.n_surplus += 1
                    new_beyond[i] |= done[i]
                    self.n_ended_beyond += done[i]
                    if after[i] is None:
                        after[i] = self.seen[i]
                else:
                    taken[i].append([self.seen[i], actions[i], reward, terminated, truncated, None])
            going_on = [i for i in range(N) if not done[i]]
            next_seen = dict(zip(going_on, self.learned([raw[i] for i in going_on]), strict=True) if going_on else ())
            for i in range(N):
                if done[i]:  # nobody acts on it
                    last = raw[i][None]
                    next_seen[i] = (self.policy.observations.normalize(last) if self.learns_by_step else last)[0]
                    if i not in surplus and taken[i][-1][4]:
                        taken[i][-1][5] = next_seen[i]
                self.seen[i] = next_seen[i]
            self.ended = done
        scaled = self.scaled(taken)
        for i in range(N):
            self.discounted[i] *= not new_beyond[i]
        return taken, after, scaled

    def scaled(self, taken):
        scaled = np.zeros((T, N))
        for t in range(T):
            for i in range(N):
                self.discounted[i] = self.discounted[i] * self.config.gamma + taken[i][t][2]
            self.all_discounted += self.discounted
            for i in range(N):
                scaled[t, i] = taken[i][t][2] / np.sqrt(np.var(self.all_discounted) + 1e-8)
                self.discounted[i] *= not (taken[i][t][3] or taken[i][t][4])
        return scaled.clip(-10, 10)


def env_of(config):
    return ShortBox if config.use_sde else Short


def policy_and_config(**settings):
    config = PPOConfig(n_steps=T, minibatch_size=T, hidden_sizes=(8,), **settings)
    policy = Policy(Short.observation_space, env_of(config).action_space, config, seed=SEED)
    policy.compile()
    return policy, config


def collector_of(mode, **settings):
    policy, config = policy_and_config(**settings)
    kind = NextStepCollector if mode == AutoresetMode.NEXT_STEP else HostCollector
    n = settings.pop("n", N)
    return (
        kind(SerialEnv([env_of(config)] * n, autoreset_mode=mode, copy=False), policy, config, seed=SEED),
        policy,
        config,
    )


SETTINGS = [
    {},
    {"normalize_update": "rollout"},
    {"normalize_obs": False, "normalize_rewards": False},
    {"memory": "gru", "memory_size": 4},
    {"use_sde": True, "sde_sample_freq": 5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rollouts_are_those_of_plain_loops_without_the_steps_that_only_reset(settings):
    collector, policy, config = collector_of(AutoresetMode.NEXT_STEP, **settings)
    plain = Plain(policy_and_config(**settings)[0], config)
    by_rollout = settings.get("normalize_update") == "rollout"
    for k in range(6):
        before = policy.observations.normalizer and policy.observations.normalizer.state_dict()
        assert collector.collect(should_stop=lambda: False)
        taken, after, scaled = plain.rollout()
        whole, normalize = collector._whole, lambda rows: rows
        if by_rollout:  # it holds normalized observations, by the statistics before it
            normalize = plain.policy.observations.normalize
            assert before == plain.policy.observations.normalizer.state_dict()
        columns = [np.array([[taken[i][t][c] for i in range(N)] for t in range(T)]) for c in range(5)]
        np.testing.assert_array_equal(whole.observations[:T], normalize(columns[0]))
        for name, column in zip(("actions", "terminated", "truncated"), (columns[1], *columns[3:]), strict=True):
            np.testing.assert_array_equal(getattr(whole, name), column)
        rewards = columns[2] if settings.get("normalize_rewards") is False else scaled
        np.testing.assert_allclose(whole.rewards, rewards, rtol=1e-5, atol=1e-7)
        finals = {(t, i): taken[i][t][5] for i in range(N) for t in range(T) if taken[i][t][5] is not None}
        finals |= {(T - 1, i): each for i, each in enumerate(after) if each is not None and not any(taken[i][-1][3:5])}
        found = {(t, i): final for t, i, final in whole.final_observations}
        assert len(found) == len(whole.final_observations)
        assert found.keys() == finals.keys()
        for place, final in finals.items():
            np.testing.assert_array_equal(found[place], normalize(final[None])[0])
        if by_rollout:
            plain.policy.observations.normalizer.update(columns[0].reshape(N * T, -1))
        elif policy.observations.normalizer is not None:
            assert policy.observations.normalizer.state_dict() == plain.policy.observations.normalizer.state_dict()
        assert collector.global_step == (k + 1) * N * T
        if plain.memory is not None:
            np.testing.assert_array_equal(collector._memory.state, plain.memory.state)
        assert np.isfinite(estimate(whole, policy, gamma=0.9, gae_lambda=0.9).batch.inputs.advantages.numpy()).all()
    episodes = [(e.env_index, e.episode_return, e.length) for e in collector.episodes.finished]
    assert episodes == [(i, pytest.approx(total), length) for i, total, length in plain.episodes]
    assert plain.n_resets > 40
    assert plain.n_surplus > 10
    assert plain.n_ended_beyond > 1


def test_the_last_value_of_an_environment_that_stepped_on_is_that_of_its_own_next_observation():
    # Advantages by the definition: gamma = 0.9, lambda = 0, so A = r + 0.9 V(next) - V.
    settings = {"normalize_obs": False, "normalize_rewards": False}
    collector, policy, config = collector_of(AutoresetMode.NEXT_STEP, **settings)
    plain = Plain(policy_and_config(**settings)[0], config)
    collector.collect(should_stop=lambda: False)
    taken, after, _ = plain.rollout()
    advantages = estimate(collector.buffer, policy, gamma=0.9, gae_lambda=0.0).batch.inputs.advantages.view(T, N)

    def value(row):
        return policy.actor_and_critic[1](torch.from_numpy(row[None])).item()

    assert any(each is not None for each in after)
    for i in range(N):
        row, _, reward, terminated, truncated, final = taken[i][-1]
        following = final if truncated else plain.seen[i] if after[i] is None else after[i]
        expected = reward + 0.9 * value(following) * (not terminated) - value(row)
        assert advantages[-1, i].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_first_rollout_is_that_of_environments_that_reset_in_the_same_step():
    by_mode = {}
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        collector, *_ = collector_of(mode, normalize_update="rollout")
        collector.collect(should_stop=lambda: False)
        by_mode[mode] = collector._whole
    ours, theirs = by_mode.values()
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_array_equal(ours.observations[:T], theirs.observations[:T])
