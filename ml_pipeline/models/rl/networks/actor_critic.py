"""Actor and critic: two perceptrons if they suffice, else a network for images, shared layers, memory or action masks,
or a user's own.

B samples, D observation size, P parameters of the distribution; T steps, M sequences, S state size. A sequence is
consecutive steps of one environment; the state is reset at the start of each episode.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.config.settings import Network
from ml_pipeline.models.rl.networks.distributions import StateDependentGaussian, distribution_for
from ml_pipeline.models.rl.networks.image_encoder import N_FEATURES, ImageEncoder
from ml_pipeline.models.rl.networks.mlp import ACTIVATIONS, build_mlp, draw_default_weights, paired_order
from ml_pipeline.models.rl.networks.user_network import UserNetwork
from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, leaves_of
from ml_pipeline.models.rl.transitions import Sequences

MemoryKind = Literal["gru", "lstm"]


class NetworkConfig(NamedTuple):
    """The settings of `PPOConfig` that describe the network.

    memory: None means no memory. value_hidden_sizes: layers of the critic; None means hidden_sizes.
    normalized: whether the network gets normalized numbers. orthogonal: see `UserNetwork`.
    """

    hidden_sizes: Sequence[int]
    activation: Activation
    share_layers: bool = False
    memory: MemoryKind | None = None
    memory_size: int = 64
    bfloat16: bool = False
    value_hidden_sizes: Sequence[int] | None = None
    share_encoder: bool = True
    network: Network = None
    network_kwargs: Mapping[str, Any] = {}
    normalized: bool = False
    use_sde: bool = False
    orthogonal: bool = True

    @classmethod
    def of_config(cls, config: PPOConfig) -> Self:
        """The part of `config` that describes the network."""
        memory = None if config.memory == "none" else config.memory
        return cls(
            config.hidden_sizes,
            config.activation,
            config.share_layers,
            memory,
            config.memory_size,
            config.bfloat16,
            config.value_hidden_sizes,
            config.share_encoder,
            config.network,
            config.network_kwargs,
            config.normalize_obs,
            config.use_sde,
            config.ortho_init,
        )


class ActorCritic(nn.Module):
    """Two perceptrons: from observations, float32 (B, D), to distribution parameters, (B, P), and values, (B,).

    value_hidden_sizes: layers of the critic; None means hidden_sizes. is_paired: True if both have the same hidden
    sizes, so that `PairedMlp` can run them together.
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
        """All parameters. Those of paired networks are in the memory order that `PairedMlp` needs."""
        one_by_one = [*self.actor.parameters(), *self.critic.parameters()]
        of_both = paired_order(self.actor, self.critic) if self.is_paired else one_by_one
        return [*of_both, *self.distribution.parameters()]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations).squeeze(1)


_FORBIDDEN = -1e8
"""The logit of an invalid choice: its probability and its share of the entropy become 0."""


class GeneralActorCritic(nn.Module):
    """From observations (B, D) to distribution parameters, (B, P), and values, (B,), for all other networks.

    Observations are float32, or uint8 if they consist of images only. Gradients come from autograd.
    Images pass through convolutions, which actor and critic share unless `share_encoder` is off. Their features and
    the other numbers then pass through the memory, if there is one, and through the hidden layers. Actor and critic
    have a memory and hidden layers each unless `share_layers` is on. A user's network stands in the place of the
    convolutions, and gets all observations. With `use_sde`, the parameters of the distribution contain the input of the
    actor's last layer.
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
        """Raises UnsupportedSpace if the action mask in the observation does not fit the action space."""
        super().__init__()
        self.distribution = distribution_for(action_space, squash=squash_actions)
        self._mask = layout.mask
        if layout.mask is not None:
            _check_mask(layout.mask, action_space)
        of_each = [config]
        if not config.share_layers:
            sizes = config.hidden_sizes if config.value_hidden_sizes is None else config.value_hidden_sizes
            of_each.append(config._replace(hidden_sizes=sizes))
        has_encoders = bool(layout.images) or config.network is not None
        n_encoders = 1 if config.share_encoder or config.share_layers or not has_encoders else 2
        self.sees_images = bool(layout.images)
        self._inputs = [_inputs_for(layout, config, generator) for _ in range(n_encoders)]
        self.inputs = nn.ModuleList(self._inputs)
        widths = [width for inputs in self._inputs for width in inputs.widths]
        if len(widths) > len(of_each):
            raise UserError(
                f"The network {config.network} returns features for the policy and for the value, so one network "
                "serves both; leave share_encoder on and share_layers off."
            )
        self._towers = [
            _Tower(width, own, generator) for width, own in zip(widths * len(of_each), of_each, strict=False)
        ]
        self.towers = nn.ModuleList(self._towers)
        of_actor = (self._towers[0].width, self.distribution.num_parameters)
        of_critic = (self._towers[-1].width, 1)
        self._explores_by_features = config.use_sde
        if config.use_sde:
            self.distribution = StateDependentGaussian(of_actor[1], num_features=of_actor[0])
        activation = config.activation
        self.actor_head = build_mlp(of_actor, activation=activation, output_gain=0.01, generator=generator)
        self.critic_head = build_mlp(of_critic, activation=activation, output_gain=1.0, generator=generator)
        users = [inputs for inputs in self._inputs if isinstance(inputs, UserNetwork) and inputs.state_size]
        if users and config.memory is not None:
            raise UserError(f"The network {users[0].name} remembers by itself, but memory is {config.memory}; use one.")
        self._memories: Sequence[UserNetwork | _Tower] = users or self._towers
        self.state_size = sum(each.state_size for each in self._memories)

    @property
    def critic_output(self) -> nn.Linear:
        """The critic's last layer."""
        layer = self.critic_head[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def user_network(self) -> UserNetwork | None:
        """The user's network, or the first of two; None if the whole network is ours."""
        first = self._inputs[0]
        return first if isinstance(first, UserNetwork) else None

    @property
    def sees_only_numbers(self) -> bool:
        """Whether only memory and layers of ours see the observations, which contain no action mask."""
        return not self.sees_images and self._mask is None and self.user_network is None

    def parameter_order(self) -> list[Tensor]:
        """All parameters that learn, in any order; a user's network may have others."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def weights_of_linear(self) -> list[Tensor]:
        """The weights, (O, I), of all layers that `linear` computes, in the order of the forward pass."""
        encoders = [encoder for inputs in self._inputs if isinstance(inputs, _Inputs) for encoder in inputs.encoders]
        return [encoder.last.weight for encoder in encoders if isinstance(encoder, ImageEncoder)]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters and values of a network without memory."""
        assert self.state_size == 0
        tops = [tower(features) for tower, features in zip(self._towers, self._features(observations), strict=True)]
        return self._heads(observations, tops)

    def parameters_of(self, observations: Tensor) -> Tensor:
        """The parameters only; the critic is not computed."""
        return self._of_actor(observations, self._towers[0](self._inputs[0](observations)[0]))

    def drop_critic(self) -> None:
        """Delete the layers that `parameters_of` and `actor_step` do not use."""
        del self.critic_head, self._towers[1:], self.towers[1:], self._inputs[1:], self.inputs[1:], self._memories[1:]

    @property
    def actor_state_size(self) -> int:
        """The size of the actor's part of a state, which is the first part."""
        return self._memories[0].state_size

    def actor_step(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the actor only; returns the parameters and the actor's state after the step, float (B, S)."""
        starts = torch.zeros(1, state.shape[0], dtype=torch.bool, device=state.device)
        features, sequences = self._inputs[0](observations)[0], Sequences(starts, state)
        top, states = self._memories[0].over_sequences(features, sequences)
        if self._memories[0] is not self._towers[0]:
            top = self._towers[0](top)
        return self._of_actor(observations, top), states[0]

    def over_sequences(self, observations: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Run sequences: observations (T * M, D), ordered by step, to parameters (T * M, P), values (T * M,) and the
        states after each step, (T, M, S)."""
        parts = sequences.state.split([each.state_size for each in self._memories], dim=1)
        features = self._features(observations)[: len(self._memories)]
        remembered = [
            each.over_sequences(own, Sequences(sequences.starts, part))
            for each, own, part in zip(self._memories, features, parts, strict=True)
        ]
        tops, states = zip(*remembered, strict=True)
        if self._memories[0] is not self._towers[0]:
            features = [*tops] * (len(self._towers) // len(tops))
            tops = tuple(tower(own) for tower, own in zip(self._towers, features, strict=True))
        return *self._heads(observations, tops), torch.cat(states, dim=2)

    def _features(self, observations: Tensor) -> list[Tensor]:
        """The input of each tower, float32 (B, width); if there is only one, both towers have it."""
        features = [part for inputs in self._inputs for part in inputs(observations)]
        return features if len(features) == len(self._towers) else features * len(self._towers)

    def _heads(self, observations: Tensor, tops: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self._of_actor(observations, tops[0]), self.critic_head(tops[-1]).squeeze(1)

    def _of_actor(self, observations: Tensor, top: Tensor) -> Tensor:
        """The parameters of the distribution, (B, P); top: the input of the actor's last layer."""
        parameters = self.actor_head(top)
        if self._explores_by_features:
            return torch.cat([parameters, top], dim=1)
        if self._mask is None:
            return parameters
        return torch.where(observations[:, self._mask] > 0.5, parameters, _FORBIDDEN)


def network_for(
    layout: ObservationLayout, action_space: spaces.Space, config: PPOConfig, generator: torch.Generator
) -> ActorCritic | GeneralActorCritic:
    """An `ActorCritic` if two perceptrons suffice, else a `GeneralActorCritic`; `generator` draws the weights.

    Raises UnsupportedSpace if a setting does not fit the observations or the action space.
    """
    squash = config.squash_actions
    has_numbers = any(isinstance(leaf, spaces.Box) for leaf in leaves_of(action_space))
    for name, given, fits, remedy in (
        ("squash_actions", squash, has_numbers, "switch it off"),
        ("log_std_init", config.log_std_init, has_numbers, "leave it out"),
        ("use_sde", config.use_sde, isinstance(action_space, spaces.Box), "switch it off"),
    ):
        if given and not fits:
            raise UnsupportedSpace(f"{name} needs a Box of actions, but the action space is {action_space}; {remedy}.")
    if config.bfloat16 and config.network is not None:
        raise UnsupportedSpace("bfloat16 is for our own network for images; switch it off.")
    if config.bfloat16 and not layout.images:
        raise UnsupportedSpace("bfloat16 needs images, but the observations have none; switch it off.")
    for name in ("hidden_sizes", "value_hidden_sizes"):
        if getattr(config, name) == () and not layout.images and config.network is None:
            raise UnsupportedSpace(
                f"{name} must name at least one layer, such as 64 64, but got none, which is for images and networks "
                "of your own."
            )
    if not config.share_encoder and not layout.images and config.network is None:
        raise UnsupportedSpace("share_encoder needs images, but the observations have none; leave it on.")
    network = _new_network(layout, action_space, config, generator)
    has_memory = isinstance(network, GeneralActorCritic) and network.state_size
    if config.sequence_length is not None and not has_memory:
        raise UnsupportedSpace(
            f"sequence_length is {config.sequence_length}, but the network {config.network} has no step() that "
            "remembers; leave it out."
        )
    if not config.ortho_init:
        users = [part for inputs in network.modules() if isinstance(inputs, UserNetwork) for part in inputs.modules()]
        draw_default_weights((layer for layer in network.modules() if layer not in users), generator)
    for log_std in network.distribution.parameters():  # distributions have no others
        nn.init.constant_(log_std, config.log_std_init)
    return network


def _new_network(
    layout: ObservationLayout, action_space: spaces.Space, config: PPOConfig, generator: torch.Generator
) -> ActorCritic | GeneralActorCritic:
    squash, network_config = config.squash_actions, NetworkConfig.of_config(config)
    is_simple = layout.is_plain and config.network is None and not config.use_sde
    if not is_simple or network_config.share_layers or network_config.memory is not None:
        return GeneralActorCritic(layout, action_space, network_config, squash_actions=squash, generator=generator)
    return ActorCritic(
        len(layout.numbers),
        action_space,
        hidden_sizes=network_config.hidden_sizes,
        value_hidden_sizes=network_config.value_hidden_sizes,
        activation=network_config.activation,
        squash_actions=squash,
        generator=generator,
    )


def _inputs_for(
    layout: ObservationLayout, config: NetworkConfig, generator: torch.Generator
) -> "_Inputs | UserNetwork":
    if config.network is None:
        return _Inputs(layout, config, generator)
    return UserNetwork(
        config.network,
        config.network_kwargs,
        layout,
        normalized=config.normalized,
        orthogonal=config.orthogonal,
        generator=generator,
    )


class _Inputs(nn.Module):
    """From observations (B, D) to the input of the memory or the first hidden layer, float32 (B, width)."""

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
        self.widths = (len(layout.numbers) + N_FEATURES * len(layout.images),)

    def forward(self, observations: Tensor) -> tuple[Tensor]:
        parts = [encoder(observations[:, im.columns]) for encoder, im in zip(self.encoders, self._images, strict=True)]
        if len(self._numbers):
            parts.insert(0, observations[:, self._numbers])
        return (torch.cat(parts, dim=1),)


class _Tower(nn.Module):
    """The memory, if there is one, and the hidden layers of one network. width: of its output."""

    def __init__(self, width: int, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.memory = None
        if config.memory is not None:
            self.memory = Memory(width, config.memory_size, kind=config.memory, generator=generator)
            width = config.memory_size
        sizes = (width, *config.hidden_sizes)
        hidden = build_mlp(sizes, activation=config.activation, output_gain=np.sqrt(2.0), generator=generator)
        if config.hidden_sizes:
            hidden.append(ACTIVATIONS[config.activation].module())
        self.hidden, self.width = hidden, sizes[-1]
        self.state_size = 0 if self.memory is None else self.memory.state_size

    def forward(self, features: Tensor) -> Tensor:
        return self.hidden(features)

    def over_sequences(self, features: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        assert self.memory is not None
        outputs, states = self.memory(features.unflatten(0, sequences.starts.shape), sequences)  # (T, M, ...)
        return self.hidden(outputs.flatten(0, 1)), states


class Memory(nn.Module):
    """A GRU or LSTM cell that runs over sequences. The state is (M, S); an LSTM's is its hidden and its cell state."""

    def __init__(self, input_size: int, size: int, *, kind: MemoryKind, generator: torch.Generator) -> None:
        super().__init__()
        self.state_size = size * (2 if kind == "lstm" else 1)
        self.cell = nn.LSTMCell(input_size, size) if kind == "lstm" else nn.GRUCell(input_size, size)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, 1.0, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Float (T, M, inputs) to outputs (T, M, size) and the states after each step, (T, M, S)."""
        outputs, states, state = [], [], sequences.state
        for step_inputs, starts in zip(inputs, sequences.starts, strict=True):
            # where() instead of a product, so that no gradient passes the start of an episode.
            state = torch.where(starts[:, None], torch.zeros_like(state), state)
            if isinstance(self.cell, nn.LSTMCell):
                hidden, carried = self.cell(step_inputs, state.chunk(2, dim=1))
                state = torch.cat([hidden, carried], dim=1)
            else:
                hidden = state = self.cell(step_inputs, state)
            outputs.append(hidden)
            states.append(state)
        return torch.stack(outputs), torch.stack(states)


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
            f"The action mask must have one entry per choice, {expected} for {action_space}, but has {size}."
        )
