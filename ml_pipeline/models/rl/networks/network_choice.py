"""Which network fits observations, actions and hyperparameters."""

import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.network_config import NetworkConfig
from ml_pipeline.models.rl.preprocessing.observation_layout import ObservationLayout
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace, leaves_of


def network_for(
    layout: ObservationLayout, action_space: spaces.Space, config: PPOConfig, generator: torch.Generator
) -> ActorCritic | GeneralActorCritic:
    """Two perceptrons (`ActorCritic`) if they suffice, else a `GeneralActorCritic`; weights come from `generator`.

    Raises UnsupportedSpace if no network fits.
    """
    squash = config.squash_actions
    if squash and not any(isinstance(leaf, spaces.Box) for leaf in leaves_of(action_space)):
        raise UnsupportedSpace(
            f"squash_actions is about numbers, but the action space {action_space} has none; switch it off."
        )
    if config.bfloat16 and not layout.images:
        raise UnsupportedSpace("bfloat16 is about images, but the observations have none; switch it off.")
    if not config.share_encoder and not layout.images:
        raise UnsupportedSpace("share_encoder is about images, but the observations have none; leave it on.")
    network_config = NetworkConfig.of_config(config)
    if not layout.is_plain or network_config.share_layers or network_config.memory is not None:
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
