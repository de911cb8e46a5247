"""A policy ready to act: it encodes and normalizes observations, chooses, and fits the choice to the action space."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic, NetworkConfig
from ml_pipeline.models.rl.networks.mlp import NumpyMlp
from ml_pipeline.models.rl.policies.acting import ActingMemory, TorchActor
from ml_pipeline.models.rl.policies.compiled_networks import CompiledNetworks, can_compile, give_up_compiling
from ml_pipeline.models.rl.preprocessing.action_mask import check_masks
from ml_pipeline.models.rl.preprocessing.normalization import ObservationNormalizer, ValueNormalizer
from ml_pipeline.models.rl.preprocessing.observation_layout import observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import (
    UnsupportedSpace,
    action_fitter,
    leaves_of,
    observation_encoder,
    only_row,
)
from ml_pipeline.runtime.seeding import random_generator

Array = np.ndarray
Perceptron = Callable[[torch.Tensor], torch.Tensor]


class Policy:
    """How to act; what learning changes in it is `network` (torch) and `normalizer` (running statistics).

    The network is an `ActorCritic`, two perceptrons, wherever that will do, and a `GeneralActorCritic` elsewhere.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """For the spaces of a single environment, of the kind that `config` asks for; None is that of PPOConfig().

        Raises UnsupportedSpace where no network fits the spaces.
        """
        config = config or PPOConfig()
        self.squashes_actions = config.squash_actions
        if config.squash_actions and not any(isinstance(leaf, spaces.Box) for leaf in leaves_of(action_space)):
            raise UnsupportedSpace(
                f"squash_actions is about numbers, but the action space {action_space} has none; switch it off."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.encode, self.observation_size = observation_encoder(observation_space)
        self.fit_actions = action_fitter(action_space, squash=config.squash_actions)
        self.layout = layout = observation_layout(observation_space)
        if config.bfloat16 and not layout.images:
            raise UnsupportedSpace(f"bfloat16 is about images, but the observations {observation_space} have none.")
        columns = None if layout.is_plain else layout.numbers
        self.normalizer = (
            ObservationNormalizer(self.observation_size, columns=columns) if config.normalize_obs else None
        )
        self.value_normalizer = ValueNormalizer() if config.normalize_values else None
        self.device = torch.device(device)
        self._network_config = network_config = NetworkConfig.of_config(config)
        generator = torch.Generator().manual_seed(int(random_generator(seed, "weights").integers(2**62)))
        self.network: ActorCritic | GeneralActorCritic
        self._actor: NumpyMlp | TorchActor
        if layout.is_plain and not network_config.share_layers and network_config.memory is None:
            self.network = ActorCritic(
                self.observation_size,
                action_space,
                hidden_sizes=network_config.hidden_sizes,
                activation=network_config.activation,
                squash_actions=config.squash_actions,
                generator=generator,
            ).to(device)
            self._actor = NumpyMlp(self.network.actor)
        else:
            self.network = GeneralActorCritic(
                layout, action_space, network_config, squash_actions=config.squash_actions, generator=generator
            ).to(device)
            self._actor = TorchActor(self.network)
        self.distribution: Any = self.network.distribution
        self._compiled: CompiledNetworks | None = None
        self.act = Acting(self)

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Raise UserError where the policy was made for other spaces of a single environment than these."""
        for what, theirs, ours in (
            ("observations", observation_space, self.observation_space),
            ("actions", action_space, self.action_space),
        ):
            if _describe(theirs) != _describe(ours):
                raise UserError(
                    f"The policy was made for {what} {ours}, but those of the environments are {theirs}; make it anew "
                    "for their spaces."
                )

    def refresh(self) -> None:
        """Let acting and estimating see weights that have just changed or moved."""
        self._actor.refresh()
        if self._compiled is not None:
            self._compiled.refresh()

    def compile(self) -> None:
        """Let acting and estimating run compiled, which pays for thousands of steps; no effect where that cannot be."""
        if isinstance(self.network, ActorCritic) and can_compile(self.network):
            try:
                self._compiled = CompiledNetworks(self.network)
            except Exception as error:  # numba's, of any kind
                give_up_compiling(error)

    @property
    def actor_and_critic(self) -> tuple[Perceptron, Perceptron]:
        """Those of an `ActorCritic`, float32 (N, D) to (N, P) and (N, 1), to be called without gradients."""
        assert isinstance(self.network, ActorCritic)
        networks = self._compiled or self.network
        return networks.actor, networks.critic

    def new_memory(self, num_envs: int) -> ActingMemory | None:
        """What `choose` needs to act in `num_envs` environments whose episodes begin; None without memory."""
        if isinstance(self.network, GeneralActorCritic) and self.network.state_size:
            return ActingMemory(self.network, num_envs)
        return None

    def encode_one(self, observation: Any) -> Array:
        """A single observation as float32 (1, D), never a view of it."""
        return self.encode(observation).reshape(1, self.observation_size).copy()

    def normalize(self, encoded: Array) -> Array:
        """Encoded observations, float32 (N, D), as the network wants them, float32 (N, D)."""
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def learn_value_units(self, returns: Array) -> None:
        """Learn the mean and deviation of returns, float (B,); values in their units stay what they were.

        For policies with a `value_normalizer`.
        """
        assert self.value_normalizer is not None
        scale, shift = self.value_normalizer.update(returns)
        output = self.network.critic_output
        with torch.no_grad():
            output.weight.mul_(scale)
            output.bias.mul_(scale).add_(shift)

    def choose(self, normalized: Array, noise: Array, memory: ActingMemory | None = None) -> Array:
        """Sampled actions (N, ...) of the distribution, for float32 (N, D) and this noise.

        Raises UserError where a mask allows none.
        """
        if self._compiled is not None:
            return self._compiled.choose(normalized, noise)
        return self.distribution.sample(self.parameters(normalized, memory), noise)

    def choose_likeliest(self, normalized: Array, memory: ActingMemory | None = None) -> Array:
        """The same without chance."""
        return self.distribution.mode(self.parameters(normalized, memory))

    def parameters(self, normalized: Array, memory: ActingMemory | None = None) -> Array:
        """What the distribution is given to draw from: logits or means, float32 (N, P)."""
        if self.layout.mask is not None:
            check_masks(normalized[:, self.layout.mask], self.action_space)
        return (self._actor if memory is None else memory)(normalized)

    def state_dict(self) -> dict[str, Any]:
        """Weights, normalization, and what they fit, which `load_state_dict` compares; a copy, not views."""
        return {
            "fits": self._fits(),
            "network": {name: weight.clone() for name, weight in self.network.state_dict().items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "value_normalizer": None if self.value_normalizer is None else self.value_normalizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved policy. Raises UserError, and changes nothing, where it was made for something else."""
        for what, ours in self._fits().items():
            theirs = state["fits"][what]
            if theirs != ours:
                raise UserError(
                    f"The saved policy has {what} {theirs}, but here it is {ours}; load it where that is the same."
                )
        self.network.load_state_dict(state["network"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        if self.value_normalizer is not None:
            self.value_normalizer.load_state_dict(state["value_normalizer"])
        self.refresh()

    def _fits(self) -> dict[str, str]:
        network_config, memory = self._network_config, self._network_config.memory
        return {
            "observation space": _describe(self.observation_space),
            "action space": _describe(self.action_space),
            "hidden sizes": str(list(network_config.hidden_sizes)),
            "activation": network_config.activation,
            "observation normalization": _on_or_off(self.normalizer is not None),
            "value normalization": _on_or_off(self.value_normalizer is not None),
            "squashing of actions": _on_or_off(self.squashes_actions),
            "sharing of layers": _on_or_off(network_config.share_layers),
            "memory": "none" if memory is None else f"{memory} of {network_config.memory_size}",
        }


class Acting:
    """Acting in a single environment, observation by observation: the likeliest action, or one that is drawn.

    A recurrent policy remembers from call to call; `begin_episode` lets it forget.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget what was."""
        self._memory = self._policy.new_memory(1)

    def __call__(self, observation: Any, *, generator: np.random.Generator | None = None) -> Any:
        """The action for one observation: the likeliest, or sampled where a generator is given."""
        policy = self._policy
        normalized = policy.normalize(policy.encode_one(observation))
        if generator is None:
            chosen = policy.choose_likeliest(normalized, self._memory)
        else:
            chosen = policy.choose(normalized, policy.distribution.draw_noise(generator, (1,)), self._memory)
        return only_row(policy.fit_actions(chosen))


def _on_or_off(value: bool) -> str:
    return "on" if value else "off"


def _describe(space: spaces.Space) -> str:
    """Kind and shape, without bounds: a Box whose bounds moved still fits."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return str(space)


def choose_device(name: str) -> str:
    """The device that a name means: "cpu", "cuda", "mps", or one of several, "cuda:1"; "auto" is the CPU, the fastest
    for perceptrons of usual sizes.

    Raises UserError where the device is not there.
    """
    if name == "auto":
        return "cpu"
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, _, number = name.partition(":")
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        found = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"The device {name} is not there; this machine has {found}. Pass one of them, or auto.")
    return name
