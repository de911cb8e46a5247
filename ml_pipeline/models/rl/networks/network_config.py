"""The kind and size of a network."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from ml_pipeline.config.ppo import Activation, PPOConfig
from ml_pipeline.models.rl.networks.memory import MemoryKind


class NetworkConfig(NamedTuple):
    """The part of `PPOConfig` that is about the network. memory: None means none. value_hidden_sizes: of the critic,
    None means hidden_sizes.
    """

    hidden_sizes: Sequence[int]
    activation: Activation
    share_layers: bool = False
    memory: MemoryKind | None = None
    memory_size: int = 64
    bfloat16: bool = False
    value_hidden_sizes: Sequence[int] | None = None
    share_encoder: bool = True

    @classmethod
    def of_config(cls, config: PPOConfig) -> Self:
        """The network that the hyperparameters ask for."""
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
        )
