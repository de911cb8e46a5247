"""PPO as one writes it down in torch: autograd, torch.distributions, torch's Adam, Gymnasium's vectorizer.

What `ppo_throughput.py` compares with; the settings that CleanRL's PPO has in common with all are those of the job, and
what is its own, 0.5 of half the mean square error and clipped values, is here too.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical, Normal

GAMMA, GAE_LAMBDA, CLIP, VF_COEF, ENT_COEF, MAX_NORM = 0.99, 0.95, 0.2, 0.5, 0.01, 0.5


class Agent(nn.Module):
    def __init__(self, observation_size: int, action_space: gymnasium.Space) -> None:
        super().__init__()
        self.discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        outputs = int(action_space.n) if self.discrete else action_space.shape[0]
        self.actor = self._mlp(observation_size, outputs, 0.01)
        self.critic = self._mlp(observation_size, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    @staticmethod
    def _mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
        layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def forward(self, observations: torch.Tensor, actions: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Actions (those given, or new ones), their log-probabilities, entropies and values."""
        given = self.actor(observations)
        policy = Categorical(logits=given) if self.discrete else Normal(given, self.log_std.exp())
        if actions is None:
            actions = policy.sample()
        log_probs, entropies = policy.log_prob(actions), policy.entropy()
        if not self.discrete:
            log_probs, entropies = log_probs.sum(1), entropies.sum(1)
        return actions, log_probs, entropies, self.critic(observations).squeeze(1)


def plain_torch(
    make_env: Callable[[], Any], *, num_envs: int, n_steps: int, minibatch_size: int, n_epochs: int
) -> Callable[[int], None]:
    """A function that trains for a number of iterations."""
    torch.set_num_threads(1)
    envs = SyncVectorEnv([make_env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    observation = torch.as_tensor(envs.reset(seed=0)[0], dtype=torch.float32)

    def iterate() -> None:
        nonlocal observation
        steps, ends = [], []
        for _ in range(n_steps):
            with torch.no_grad():
                actions, log_probs, _, values = agent(observation)
            following, rewards, terminated, truncated, _ = envs.step(actions.numpy())
            rewards = torch.as_tensor(rewards, dtype=torch.float32)
            steps.append((observation, actions, log_probs, values, rewards))
            ends.append(torch.as_tensor(terminated | truncated, dtype=torch.float32))
            observation = torch.as_tensor(following, dtype=torch.float32)
        observations, actions, log_probs, values, rewards = (torch.stack(each) for each in zip(*steps, strict=True))
        with torch.no_grad():
            next_value, advantage = agent(observation)[3], torch.zeros(num_envs)
        advantages = torch.empty_like(rewards)
        for t in range(n_steps - 1, -1, -1):
            goes_on = 1.0 - ends[t]
            delta = rewards[t] + GAMMA * goes_on * next_value - values[t]
            advantages[t] = advantage = delta + GAMMA * GAE_LAMBDA * goes_on * advantage
            next_value = values[t]
        columns = (observations, actions, log_probs, values, advantages, advantages + values)
        learn(*(column.flatten(0, 1) for column in columns))

    def learn(observations, actions, old_log_probs, old_values, advantages, returns):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        order = np.arange(len(observations))
        for _ in range(n_epochs):
            np.random.shuffle(order)
            for start in range(0, len(order), minibatch_size):
                rows = order[start : start + minibatch_size]
                _, log_probs, entropies, values = agent(observations[rows], actions[rows])
                ratio = (log_probs - old_log_probs[rows]).exp()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                near = old_values[rows] + (values - old_values[rows]).clamp(-CLIP, CLIP)
                errors = torch.max((values - returns[rows]) ** 2, (near - returns[rows]) ** 2)
                loss = policy_loss - ENT_COEF * entropies.mean() + VF_COEF * 0.5 * errors.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
                optimizer.step()

    def train(iterations: int) -> None:
        for _ in range(iterations):
            iterate()

    return train
