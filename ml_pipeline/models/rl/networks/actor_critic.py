"""Actor and critic: two perceptrons that share nothing, and the distribution over actions."""

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.config.ppo import Activation
from ml_pipeline.models.rl.networks.distribution_choice import distribution_for
from ml_pipeline.models.rl.networks.mlp import build_mlp
from ml_pipeline.models.rl.networks.paired_mlp import paired_order


class ActorCritic(nn.Module):
    """Observations, float32 (B, D), to the parameters of a distribution over actions, (B, P), and values, (B,).

    value_hidden_sizes: of the critic, None means hidden_sizes. is_paired: whether both have the same hidden sizes, so
    that `PairedMlp` can run them as one.
    """

    def __init__(
        self,
        observation_size: int,
        action_space: spaces.Space,
        *,
        hidden_sizes: Sequence[int],
        value_hidden_sizes: Sequence[int] | None = None,
        activation: Activation,
        squash_actions: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.distribution = distribution_for(action_space, squash=squash_actions)
        of_actor = (observation_size, *hidden_sizes, self.distribution.num_parameters)
        of_critic = (observation_size, *(value_hidden_sizes or hidden_sizes), 1)
        self.is_paired = of_actor[:-1] == of_critic[:-1]
        self.actor = build_mlp(of_actor, activation=activation, output_gain=0.01, generator=generator)
        self.critic = build_mlp(of_critic, activation=activation, output_gain=1.0, generator=generator)

    @property
    def critic_output(self) -> nn.Linear:
        """The critic's last layer."""
        layer = self.critic[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def parameter_order(self) -> list[Tensor]:
        """All parameters; of paired networks in the order in memory that `PairedMlp` needs."""
        one_by_one = [*self.actor.parameters(), *self.critic.parameters()]
        of_both = paired_order(self.actor, self.critic) if self.is_paired else one_by_one
        return [*of_both, *self.distribution.parameters()]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations).squeeze(1)
