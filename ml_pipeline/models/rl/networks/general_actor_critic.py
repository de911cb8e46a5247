"""Actor and critic with images, shared layers, memory or masks of actions.

B samples, D observation size, P parameters of the distribution; T steps, M sequences, S state size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.activations import ACTIVATIONS
from ml_pipeline.models.rl.networks.distribution_choice import distribution_for
from ml_pipeline.models.rl.networks.image_encoder import N_FEATURES, ImageEncoder
from ml_pipeline.models.rl.networks.memory import Memory, Sequences
from ml_pipeline.models.rl.networks.mlp import build_mlp
from ml_pipeline.models.rl.networks.network_config import NetworkConfig
from ml_pipeline.models.rl.preprocessing.observation_layout import ObservationLayout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace

_FORBIDDEN = -1e8
"""The logit of a forbidden choice: its probability is 0, and so is its part of the entropy."""


class GeneralActorCritic(nn.Module):
    """Observations (B, D) to the parameters of a distribution over actions, (B, P), and values, (B,).

    Observations are float32, or uint8 where they are images alone. Gradients come from autograd.
    Images go through convolutions, which actor and critic share unless `share_encoder` is off; their features and the
    numbers go through the memory, if any, and the hidden layers, of which both have their own unless `share_layers` is
    on.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        action_space: spaces.Space,
        config: NetworkConfig,
        *,
        squash_actions: bool,
        generator: torch.Generator,
    ) -> None:
        """Raises UnsupportedSpace if the observation's mask does not fit the actions."""
        super().__init__()
        self.distribution = distribution_for(action_space, squash=squash_actions)
        self._mask = layout.mask
        if layout.mask is not None:
            _check_mask(layout.mask, action_space)
        of_each = [config]
        if not config.share_layers:
            of_each.append(config._replace(hidden_sizes=config.value_hidden_sizes or config.hidden_sizes))
        n_encoders = 1 if config.share_encoder or config.share_layers or not layout.images else 2
        self._inputs = [_Inputs(layout, config, generator) for _ in range(n_encoders)]
        self.inputs = nn.ModuleList(self._inputs)
        self._towers = [_Tower(self._inputs[0].width, own, generator) for own in of_each]
        self.towers = nn.ModuleList(self._towers)
        of_actor = (of_each[0].hidden_sizes[-1], self.distribution.num_parameters)
        of_critic = (of_each[-1].hidden_sizes[-1], 1)
        activation = config.activation
        self.actor_head = build_mlp(of_actor, activation=activation, output_gain=0.01, generator=generator)
        self.critic_head = build_mlp(of_critic, activation=activation, output_gain=1.0, generator=generator)
        self.state_size = sum(tower.state_size for tower in self._towers)

    @property
    def critic_output(self) -> nn.Linear:
        """The critic's last layer."""
        layer = self.critic_head[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def sees_images(self) -> bool:
        """Whether observations go through convolutions."""
        return len(self._inputs[0].encoders) > 0

    @property
    def sees_only_numbers(self) -> bool:
        """Whether there are neither images nor a mask of actions."""
        return not self.sees_images and self._mask is None

    def parameter_order(self) -> list[Tensor]:
        """All parameters, in any order."""
        return list(self.parameters())

    def weights_of_linear(self) -> list[Tensor]:
        """The weights, (O, I), of all layers that are computed by `linear`, in the order of the forward pass."""
        encoders = [encoder for inputs in self._inputs for encoder in inputs.encoders]
        return [encoder.last.weight for encoder in encoders if isinstance(encoder, ImageEncoder)]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """For networks without memory."""
        assert self.state_size == 0
        tops = [tower(features) for tower, features in zip(self._towers, self._features(observations), strict=True)]
        return self._heads(observations, tops)

    def parameters_of(self, observations: Tensor) -> Tensor:
        """The parameters alone, without the critic."""
        return self._allowed(observations, self.actor_head(self._towers[0](self._inputs[0](observations))))

    def drop_critic(self) -> None:
        """Delete everything that `parameters_of` and `actor_step` do not need."""
        del self.critic_head, self._towers[1:], self.towers[1:], self._inputs[1:], self.inputs[1:]

    @property
    def actor_state_size(self) -> int:
        """The size of the actor's part of a state, which comes first."""
        return self._towers[0].state_size

    def actor_step(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the actor alone: the parameters, and its part of the state, float (B, S), after the step."""
        starts = torch.zeros(1, state.shape[0], dtype=torch.bool, device=state.device)
        top, states = self._towers[0].over_sequences(self._inputs[0](observations), Sequences(starts, state))
        return self._allowed(observations, self.actor_head(top)), states[0]

    def over_sequences(self, observations: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Observations (T * M, D), step after step, to parameters (T * M, P), values (T * M,), states (T, M, S)."""
        parts = sequences.state.split([tower.state_size for tower in self._towers], dim=1)
        remembered = [
            tower.over_sequences(features, Sequences(sequences.starts, part))
            for tower, features, part in zip(self._towers, self._features(observations), parts, strict=True)
        ]
        tops, states = zip(*remembered, strict=True)
        return *self._heads(observations, tops), torch.cat(states, dim=2)

    def _features(self, observations: Tensor) -> list[Tensor]:
        """What each tower reads, float32 (B, width); both read the same where there is one encoder."""
        features = [inputs(observations) for inputs in self._inputs]
        return features if len(features) == len(self._towers) else features * len(self._towers)

    def _heads(self, observations: Tensor, tops: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self._allowed(observations, self.actor_head(tops[0])), self.critic_head(tops[-1]).squeeze(1)

    def _allowed(self, observations: Tensor, parameters: Tensor) -> Tensor:
        if self._mask is None:
            return parameters
        return torch.where(observations[:, self._mask] > 0.5, parameters, _FORBIDDEN)


class _Inputs(nn.Module):
    """From observations (B, D) to the features that memory or hidden layers read, float32 (B, width)."""

    _numbers: Tensor

    def __init__(self, layout: ObservationLayout, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._images = layout.images
        self.register_buffer("_numbers", torch.from_numpy(layout.numbers), persistent=False)
        dtype = torch.bfloat16 if config.bfloat16 else torch.float32
        self.encoders = nn.ModuleList([
            ImageEncoder(image.shape, channels_last=image.channels_last, generator=generator, dtype=dtype)
            for image in layout.images
        ])  # fmt: skip
        self.width = len(layout.numbers) + N_FEATURES * len(layout.images)

    def forward(self, observations: Tensor) -> Tensor:
        parts = [encoder(observations[:, im.columns]) for encoder, im in zip(self.encoders, self._images, strict=True)]
        if len(self._numbers):
            parts.insert(0, observations[:, self._numbers])
        return torch.cat(parts, dim=1)


class _Tower(nn.Module):
    """Everything between features and a head."""

    def __init__(self, width: int, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.memory = None
        if config.memory is not None:
            self.memory = Memory(width, config.memory_size, kind=config.memory, generator=generator)
            width = config.memory_size
        sizes = (width, *config.hidden_sizes)
        hidden = build_mlp(sizes, activation=config.activation, output_gain=np.sqrt(2.0), generator=generator)
        self.hidden = nn.Sequential(*hidden, ACTIVATIONS[config.activation].module())
        self.state_size = 0 if self.memory is None else self.memory.state_size

    def forward(self, features: Tensor) -> Tensor:
        return self.hidden(features)

    def over_sequences(self, features: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        assert self.memory is not None
        outputs, states = self.memory(features.unflatten(0, sequences.starts.shape), sequences)  # (T, M, ...)
        return self.hidden(outputs.flatten(0, 1)), states


def _check_mask(mask: slice, action_space: spaces.Space) -> None:
    if isinstance(action_space, spaces.Discrete):
        expected = int(action_space.n)
    elif isinstance(action_space, spaces.MultiDiscrete):
        expected = int(action_space.nvec.sum())
    else:
        raise UnsupportedSpace(
            f"Only Discrete and MultiDiscrete actions can be masked, but the action space is {action_space}."
        )
    size = mask.stop - mask.start
    if size != expected:
        raise UnsupportedSpace(
            f"The mask of actions must have one entry per choice, {expected} for {action_space}, but has {size}."
        )
