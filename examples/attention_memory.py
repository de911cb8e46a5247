"""A network of your own that remembers: attention over the last n observations.

    ml-pipeline train --env-id MiniGrid-MemoryS7-v0 --network attention_memory:Attention --network-kwargs '{"n": 16}'

`forward` computes the features of observations. `step` gets them with the state of each environment, and returns the
features that the policy sees and the next state. A state is `state_size` numbers, all 0 when an episode starts.
Source: Vaswani et al. 2017, arXiv:1706.03762, one head.
"""

import math

import gymnasium
import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention from the newest observation to the last n of its episode, for a Box of numbers."""

    def __init__(self, observation_space: gymnasium.Space, n: int = 8, width: int = 16) -> None:
        super().__init__()
        assert observation_space.shape is not None
        self.n, self.width = n, width
        self.state_size = n * (width + 1)  # features of the last n observations, each with a flag: it was seen
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(observation_space.shape), width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.age = nn.Parameter(torch.zeros(n))

    def forward(self, observations: Tensor) -> Tensor:
        """Observations (B, ...) to features, (B, width)."""
        features: Tensor = self.embed(observations)
        return features

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, width) and states (B, S) to features with what was seen before, (B, 2 * width), and states."""
        seen = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
        window = torch.cat([state.unflatten(1, (self.n, -1))[:, 1:], seen[:, None]], dim=1)
        earlier, is_there = window[..., :-1], window[..., -1] > 0.5
        scores = (self.key(earlier) @ self.query(features)[..., None]).squeeze(-1) / math.sqrt(self.width) + self.age
        shares = torch.where(is_there, scores, -1e9).softmax(dim=1)
        remembered = (shares[:, None] @ self.value(earlier)).squeeze(1)
        return torch.cat([features, remembered], dim=1), window.flatten(1)
