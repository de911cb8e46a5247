"""A policy ready to act: it encodes and normalizes observations, chooses, and fits the choice to the action space."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.normalization import ObservationNormalizer
from ml_pipeline.models.rl.core.seeding import random_generator
from ml_pipeline.models.rl.core.spaces import action_fitter, observation_encoder
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.mlp import Activation, NumpyMlp

Array = np.ndarray


class Policy:
    """How to act; what learning changes in it is `network` (torch) and `normalizer` (running statistics)."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        normalize_obs: bool = True,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """For the spaces of a single environment. Raises UnsupportedSpace where no network fits them."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.encode, self.observation_size = observation_encoder(observation_space)
        self.fit_actions = action_fitter(action_space)
        self.normalizer = ObservationNormalizer(self.observation_size) if normalize_obs else None
        generator = torch.Generator().manual_seed(int(random_generator(seed, "weights").integers(2**62)))
        self.network = ActorCritic(
            self.observation_size,
            action_space,
            hidden_sizes=hidden_sizes,
            activation=activation,
            generator=generator,
        ).to(device)
        self.device = torch.device(device)
        self._actor = NumpyMlp(self.network.actor)

    @property
    def distribution(self) -> Any:
        return self.network.distribution

    def refresh(self) -> None:
        """Let `act` and `choose` see weights that have just changed or moved."""
        self._actor.refresh()

    def encode_one(self, observation: Any) -> Array:
        """A single observation as float32 (1, D)."""
        batch: Any = create_empty_array(self.observation_space, 1)
        return self.encode(concatenate(self.observation_space, [observation], batch))

    def normalize(self, encoded: Array) -> Array:
        """Encoded observations, float32 (N, D), as the network wants them, float32 (N, D)."""
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def choose(self, normalized: Array, noise: Array) -> Array:
        """Sampled actions (N, ...) of the distribution, for float32 (N, D) and this noise."""
        return self.distribution.sample(self._actor(normalized), noise)

    def act(self, observation: Any, *, generator: np.random.Generator | None = None) -> Any:
        """The action for one observation: the likeliest, or sampled where a generator is given."""
        parameters = self._actor(self.normalize(self.encode_one(observation)))
        if generator is None:
            chosen = self.distribution.mode(parameters)
        else:
            chosen = self.distribution.sample(parameters, self.distribution.draw_noise(generator, (1,)))
        return next(iter(iterate(batch_space(self.action_space, 1), self.fit_actions(chosen))))

    def state_dict(self) -> dict[str, Any]:
        """Weights, normalization, and what they fit, which `load_state_dict` compares; a copy, not views."""
        return {
            "fits": self._fits(),
            "network": {name: weight.clone() for name, weight in self.network.state_dict().items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved policy. Raises UserError, and changes nothing, where it was made for something else."""
        for what, ours in self._fits().items():
            theirs = state["fits"][what]
            if theirs != ours:
                raise UserError(f"The saved policy has {what} {theirs}, but here it is {ours}.")
        self.network.load_state_dict(state["network"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        self.refresh()

    def _fits(self) -> dict[str, str]:
        hidden = [layer.out_features for layer in self.network.actor if isinstance(layer, torch.nn.Linear)][:-1]
        return {
            "observation space": _describe(self.observation_space),
            "action space": _describe(self.action_space),
            "hidden sizes": str(hidden),
            "activation": next((type(m).__name__ for m in self.network.actor if not list(m.parameters())), "none"),
            "observation normalization": "on" if self.normalizer is not None else "off",
        }


def _describe(space: spaces.Space) -> str:
    """Kind and shape, without bounds: a Box whose bounds moved still fits."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return str(space)


def choose_device(name: str) -> str:
    """The device that a name from the settings means; "auto" is the CPU, the fastest for perceptrons of usual sizes.

    Raises UserError where the device is not there.
    """
    if name == "auto":
        return "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[name]:
        found = ", ".join(device for device, is_there in there.items() if is_there)
        raise UserError(f"The device {name} is not there; this machine has {found}. Pass one of them, or auto.")
    return name
