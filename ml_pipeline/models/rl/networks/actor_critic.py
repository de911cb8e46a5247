"""Actor and critic: two perceptrons that share nothing, and the distribution over actions."""

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.distribution_choice import distribution_for
from ml_pipeline.models.rl.networks.mlp import Activation, build_mlp
from ml_pipeline.models.rl.networks.paired_mlp import paired_order


class ActorCritic(nn.Module):
    """Observations, float32 (B, D), to the parameters of a distribution over actions, (B, P), and values, (B,)."""

    def __init__(
        self,
        observation_size: int,
        action_space: spaces.Space,
        *,
        hidden_sizes: Sequence[int],
        activation: Activation,
        squash_actions: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.distribution = distribution_for(action_space, squash=squash_actions)
        inner = (observation_size, *hidden_sizes)
        outputs = self.distribution.num_parameters
        self.actor = build_mlp((*inner, outputs), activation=activation, output_gain=0.01, generator=generator)
        self.critic = build_mlp((*inner, 1), activation=activation, output_gain=1.0, generator=generator)

    @property
    def critic_output(self) -> nn.Linear:
        """The critic's last layer."""
        layer = self.critic[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def parameter_order(self) -> list[Tensor]:
        """All parameters, in the order in memory that `PairedMlp` needs."""
        return [*paired_order(self.actor, self.critic), *self.distribution.parameters()]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations).squeeze(1)
