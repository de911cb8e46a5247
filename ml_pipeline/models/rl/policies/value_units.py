"""The units in which a critic predicts: those of rewards, or of returns with mean 0 and deviation 1 (Pop-Art)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.preprocessing.normalization import ValueNormalizer

Array = np.ndarray


class ValueUnits:
    """Converts between the two. Without a `normalizer` they are the same."""

    def __init__(self, network: ActorCritic | GeneralActorCritic, *, normalize: bool) -> None:
        self._network = network
        self.normalizer = ValueNormalizer() if normalize else None

    def to_rewards(self, predictions: Tensor) -> Tensor:
        """The critic's predictions in the units of rewards; of any shape."""
        normalizer = self.normalizer
        return predictions if normalizer is None else predictions * normalizer.deviation + normalizer.mean

    def from_rewards(self, values: Tensor) -> Tensor:
        """Values in the units of rewards as the critic predicts them; of any shape."""
        normalizer = self.normalizer
        return values if normalizer is None else (values - normalizer.mean) / normalizer.deviation

    def learn(self, returns: Array) -> None:
        """Move the units with the mean and deviation of returns, float (B,), in the units of rewards.

        The critic's last layer changes with them, so that its values in the units of rewards stay the same. Needs a
        `normalizer`.
        """
        assert self.normalizer is not None
        scale, shift = self.normalizer.update(returns)
        output = self._network.critic_output
        with torch.no_grad():
            output.weight.mul_(scale)
            output.bias.mul_(scale).add_(shift)

    def state_dict(self) -> dict[str, Any] | None:
        return None if self.normalizer is None else self.normalizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if self.normalizer is not None:
            assert state is not None
            self.normalizer.load_state_dict(dict(state))
