"""Networks of a user's own for `ppo_throughput.py`: `policy_kwargs` of Stable-Baselines3, which ours takes too."""

from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import Tensor, nn


class TwoBranches(BaseFeaturesExtractor):
    """A layer per part of a Dict, side by side."""

    def __init__(self, observation_space: spaces.Dict, width: int = 64) -> None:
        super().__init__(observation_space, features_dim=width * len(observation_space.spaces))
        sizes = {name: spaces.utils.flatdim(part) for name, part in observation_space.spaces.items()}
        self.branches = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(size, width), nn.ReLU()) for name, size in sizes.items()}
        )

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return torch.cat([branch(observations[name]) for name, branch in self.branches.items()], dim=1)


class LayerNorms(BaseFeaturesExtractor):
    """Three layers, each with layer norm."""

    def __init__(self, observation_space: spaces.Box, width: int = 128) -> None:
        super().__init__(observation_space, features_dim=width)
        sizes = [spaces.utils.flatdim(observation_space), *[width] * 3]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


_CLASSES = {"NatureCNN": NatureCNN, "two branches": TwoBranches, "layer norms": LayerNorms}


def policy_kwargs(network: str) -> dict[str, Any]:
    """network: a name in `Job.network`. Both heads stand on one hidden layer above the shared extractor."""
    return {"features_extractor_class": _CLASSES[network], "net_arch": [64]}
