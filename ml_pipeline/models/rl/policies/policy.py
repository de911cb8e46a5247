"""A policy that is ready to act: it preprocesses observations, chooses, and fits the choice to the action space."""

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import same_function
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic, network_for
from ml_pipeline.models.rl.networks.user_network import UserNetwork, network_name
from ml_pipeline.models.rl.policies.acting import ActingMemory, ActRows, TorchActor, actor_for
from ml_pipeline.models.rl.policies.compiled_networks import (
    CompiledMemory,
    CompiledNetworks,
    CompiledRecurrent,
    can_compile,
    compile_if_possible,
    give_up_compiling,
)
from ml_pipeline.models.rl.policies.threads_and_device import one_thread
from ml_pipeline.models.rl.preprocessing.action_mask import check_masks
from ml_pipeline.models.rl.preprocessing.normalization import ValueNormalizer
from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor, observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import action_fitter, batch_size, only_row, space_as_data, space_name
from ml_pipeline.runtime.seeding import random_generator

Array = np.ndarray
Perceptron = Callable[[torch.Tensor], torch.Tensor]


class Policy:
    """Maps observations to actions. N environments, D observation size.

    `act` acts in a single environment; `predict` acts in one or in N, as in Stable-Baselines3; `choose` acts in N, on
    preprocessed observations. Learning changes the weights of `network`, the statistics of `observations`, and
    `values`, the units in which the critic predicts. `recurrent` runs a network with memory over rollouts in compiled
    code; it is None unless `compile` succeeded. `generator` draws for `predict`; assign another one to seed it.
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
        """Make a new policy for the spaces of a single environment. config: None means PPOConfig().

        Raises UnsupportedSpace if no network fits the spaces.
        """
        config = config or PPOConfig()
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = torch.device(device)
        self.squashes_actions = config.squash_actions
        self.observations = ObservationPreprocessor(
            observation_space,
            normalize=config.normalize_obs,
            clip=config.clip_obs,
            images_of_any_size=config.network is not None,
        )
        self.fit_actions = action_fitter(action_space, squash=config.squash_actions)
        generator = torch.Generator().manual_seed(int(random_generator(seed, "weights").integers(2**62)))
        with one_thread():  # the bits of orthogonal weights depend on the number of threads
            self.network = network_for(self.observations.layout, action_space, config, generator).to(device)
        if self.user_network is not None and self.device.type != "cpu":
            self.user_network.try_on_device()
        self.distribution: Any = self.network.distribution
        self.values = ValueUnits(self.network, normalize=config.normalize_values)
        self._actor = actor_for(self.network)
        self._compiled: CompiledNetworks | None = None
        self.recurrent: CompiledRecurrent | None = None
        self._traits = traits_of(observation_space, action_space, config)
        self._spaces_as_data = {"observation": space_as_data(observation_space), "action": space_as_data(action_space)}
        self.generator = random_generator(seed, "predict")
        self.act = Acting(self)

    @property
    def user_network(self) -> UserNetwork | None:
        """The network that the user's own function made; None if there is none."""
        return self.network.user_network if isinstance(self.network, GeneralActorCritic) else None

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Raise UserError if the policy was made for other spaces. Both are those of a single environment."""
        check_space("observations", of_policy=self.observation_space, of_envs=observation_space)
        check_space("actions", of_policy=self.action_space, of_envs=action_space)

    def compile(self) -> None:
        """Compile acting, evaluating and the statistics of observations, as far as possible.

        This is worth its time for thousands of steps.
        """
        if can_compile(self.network):
            try:
                if isinstance(self.network, ActorCritic):
                    self._compiled = CompiledNetworks(self.network)
                else:
                    self.recurrent = CompiledRecurrent(self.network)
            except Exception as error:  # numba raises many kinds
                give_up_compiling(error)
        if self.observations.normalizer is not None:
            compile_if_possible(self.observations.normalizer.compile)

    def refresh(self) -> None:
        """Read the weights again; call this after they have changed or moved."""
        self._actor.refresh()
        for compiled in (self._compiled, self.recurrent):
            if compiled is not None:
                compiled.refresh()

    @property
    def actor_and_critic(self) -> tuple[Perceptron, Perceptron]:
        """The two networks of an `ActorCritic`, from float32 (N, D) to (N, P) and (N, 1), without gradients."""
        assert isinstance(self.network, ActorCritic)
        networks = self._compiled or self.network
        return networks.actor, networks.critic

    def new_memory(self, num_envs: int) -> ActingMemory | None:
        """A memory for acting in `num_envs` environments whose episodes begin; None for a policy without memory."""
        if isinstance(self.network, GeneralActorCritic) and self.network.state_size:
            return ActingMemory(self.network, num_envs)
        return None

    def new_rollout_memory(self, num_envs: int) -> ActingMemory | None:
        """`new_memory` for collecting rollouts; compiled if `compile` succeeded. Evaluations do not use it."""
        if isinstance(self.network, GeneralActorCritic) and self.recurrent is not None:
            return CompiledMemory(self.recurrent, self.network, num_envs)
        return self.new_memory(num_envs)

    def acting_threads(self) -> AbstractContextManager[None]:
        """Within the block, torch acts in one thread, so that actions do not depend on the number of cores.

        It has no effect unless torch acts on a CPU. All methods that act enter it themselves; entering it once for a
        whole evaluation saves 0.12 ms per step.
        """
        return one_thread() if self._actor.uses_torch_threads else nullcontext()

    def choose(
        self, normalized: Array, noise: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> Array:
        """Sample actions (n, ...) for observations (n, D) and their noise; advances `memory`.

        at_hand: which of all environments these are, if this process has only some of them. Each environment then gets
        the action that it would get together with all others. None means that these are all environments.
        Raises UserError if a mask forbids every action.
        """
        if self._compiled is not None:
            return self._compiled.choose(normalized, noise)
        return self.distribution.sample(self.parameters(normalized, memory, at_hand), noise)

    def choose_and_value(
        self, normalized: Array, noise: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> tuple[Array, Array | None]:
        """The actions of `choose`, and for a policy with images and without memory also its outputs, else None.

        The outputs are distribution parameters and values, float32 (n, P + 1). For images, computing them again would
        cost as much as acting.
        """
        if memory is not None or not isinstance(self._actor, TorchActor) or not self._actor.sees_images:
            return self.choose(normalized, noise, memory, at_hand), None
        self._check_masks(normalized)
        with self.acting_threads():
            outputs = self._actor.with_values(normalized, at_hand)
        return self.distribution.sample(outputs[:, :-1], noise), outputs

    def choose_likeliest(self, normalized: Array, memory: ActingMemory | None = None) -> Array:
        """The most likely actions, (N, ...); nothing is sampled."""
        return self.distribution.mode(self.parameters(normalized, memory))

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, tuple[Array, ...] | None]:
        """Actions for one observation or a batch of N, and the state for the next call, as in Stable-Baselines3.

        state: what the previous call returned, one float32 (N, S); None if episodes begin, and always without memory.
        episode_start: bool (N,), where a new episode begins, so that the state is reset. deterministic: the most likely
        actions; otherwise they are sampled with `generator`. Normalization and action masks are applied as in `act`.
        Raises UserError if the observation or the state has another shape.
        """
        n_rows = batch_size(self.observation_space, observation)
        normalized = self.observations.normalize(np.array(self.observations.encode(observation)))
        memory = self.new_memory(len(normalized))
        if memory is not None:
            memory.begin(state, episode_start)
        if deterministic:
            chosen = self.choose_likeliest(normalized, memory)
        else:
            noise = self.distribution.draw_noise(self.generator, (len(normalized),))
            chosen = self.choose(normalized, noise, memory)
        actions = self.fit_actions(chosen)
        return only_row(actions) if n_rows is None else actions, (memory.state,) if memory is not None else None

    def parameters(
        self, normalized: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> Array:
        """The distribution parameters, logits or means, float32 (n, P); the arguments are those of `choose`."""
        self._check_masks(normalized)
        with self.acting_threads():
            return (self._actor if memory is None else memory)(normalized, at_hand)

    def _check_masks(self, normalized: Array) -> None:
        mask = self.observations.layout.mask
        if mask is not None:
            check_masks(normalized[:, mask], self.action_space)

    def state_dict(self) -> dict[str, Any]:
        """Weights and statistics, and the traits that `load_state_dict` compares; copies, not views.

        "spaces" holds the spaces of a single environment as plain data, so that the policy can be rebuilt without an
        environment.
        """
        normalizer = self.observations.normalizer
        return {
            "fits": dict(self._traits),
            "spaces": dict(self._spaces_as_data),
            "network": {name: weight.clone() for name, weight in self.network.state_dict().items()},
            "normalizer": None if normalizer is None else normalizer.state_dict(),
            "value_normalizer": self.values.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved policy. Raises UserError, and changes nothing, if its traits differ from this policy's."""
        check_traits(state["fits"], self._traits)
        if self.user_network is not None:
            self._check_weights(state["network"])
        self.network.load_state_dict(state["network"])
        if self.observations.normalizer is not None:
            self.observations.normalizer.load_state_dict(state["normalizer"])
        self.values.load_state_dict(state["value_normalizer"])
        self.refresh()

    def _check_weights(self, saved: Mapping[str, Tensor]) -> None:
        """Raise UserError if the user's function now makes another network than the saved one."""
        ours = self.network.state_dict()
        changed = (name for name in {**saved, **ours} if name not in saved or name not in ours)
        reshaped = (name for name in ours if name in saved and saved[name].shape != ours[name].shape)
        if (name := next(itertools.chain(changed, reshaped), None)) is not None:
            raise UserError(
                f"The network {self._traits[_NETWORK]} has changed since the policy was saved: {name} differs; restore "
                "the function as it was, or train again."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> list[str]:
        """A description for readers: observations and actions, then the kind of network."""
        traits = self._traits
        kind = [
            f"hidden sizes {traits['hidden sizes']}",
            traits["activation"],
            f"network {traits[_NETWORK]}" if _NETWORK in traits else "",
            f"memory {traits['memory']}" if traits["memory"] != "none" else "",
            "shared layers" if traits["sharing of layers"] == "on" else "",
            str(self.device) if self.device.type != "cpu" else "",
        ]
        return [f"{space_name(self.observation_space)} -> {space_name(self.action_space)}", *filter(None, kind)]


class Acting:
    """Acts in a single environment, with the most likely action or a sampled one.

    A recurrent policy keeps its memory from call to call, until `begin_episode`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.begin_episode()

    def begin_episode(self) -> None:
        """Reset the memory; call this before each episode."""
        self._memory = self._policy.new_memory(1)

    def __call__(self, observation: Any, *, generator: np.random.Generator | None = None) -> Any:
        """The action for one observation: the most likely one, or a sampled one if a generator is given."""
        policy = self._policy
        normalized = policy.observations.process_one(observation)
        if generator is None:
            chosen = policy.choose_likeliest(normalized, self._memory)
        else:
            chosen = policy.choose(normalized, policy.distribution.draw_noise(generator, (1,)), self._memory)
        return only_row(policy.fit_actions(chosen))


class ValueUnits:
    """Converts values between the units of rewards and those of the critic, which differ only with a `normalizer`."""

    def __init__(self, network: ActorCritic | GeneralActorCritic, *, normalize: bool) -> None:
        self._network = network
        self.normalizer = ValueNormalizer() if normalize else None

    def to_rewards(self, predictions: Tensor) -> Tensor:
        """Predictions of the critic in units of rewards; any shape."""
        normalizer = self.normalizer
        return predictions if normalizer is None else predictions * normalizer.deviation + normalizer.mean

    def from_rewards(self, values: Tensor) -> Tensor:
        """Values in units of rewards, converted to the units of the critic; any shape."""
        normalizer = self.normalizer
        return values if normalizer is None else (values - normalizer.mean) / normalizer.deviation

    def learn(self, returns: Array) -> None:
        """Update the units of the critic with the mean and deviation of returns, float (B,), in units of rewards.

        The last layer of the critic is rescaled, so that its values in units of rewards do not change. Needs a
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


_ENCODERS = "encoders of images"
"""A trait of policies with images. Policies without it are of earlier versions, which read pixels in another order."""


_NETWORK = "network"
_USE_SDE = "use_sde"
"""A trait that policies of earlier versions lack; it was off."""


def traits_of(observation_space: spaces.Space, action_space: spaces.Space, config: PPOConfig) -> dict[str, str]:
    """The traits of a policy by name. A checkpoint holds them, and only a policy with equal traits can load it."""
    sizes = str(list(config.hidden_sizes))
    if config.value_hidden_sizes not in (None, config.hidden_sizes):
        sizes += f" and of the value network {list(config.value_hidden_sizes)}"
    normalization = _on_or_off(config.normalize_obs)
    if config.clip_obs != PPOConfig.clip_obs:
        normalization += f", clipped to {config.clip_obs:g}"
    encoders = {}
    if config.network is not None:
        encoders = {
            _NETWORK: network_name(config.network),
            "network_kwargs": json.dumps(config.network_kwargs, sort_keys=True),
            "networks of the user": _encoders(config),
        }
    elif observation_layout(observation_space).images:
        encoders = {_ENCODERS: _encoders(config)}
    return {
        "observation space": _describe(observation_space),
        "action space": _describe(action_space),
        "hidden sizes": sizes,
        "activation": config.activation,
        "observation normalization": normalization,
        "value normalization": _on_or_off(config.normalize_values),
        "squashing of actions": _on_or_off(config.squash_actions),
        _USE_SDE: _on_or_off(config.use_sde),
        "sharing of layers": _on_or_off(config.share_layers),
        "memory": "none" if config.memory == "none" else f"{config.memory} of {config.memory_size}",
        **encoders,
    }


def check_traits(saved: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise UserError about the first trait in which a saved policy differs from the one that loads it."""
    saved, here = {_NETWORK: "none", _USE_SDE: "off", **saved}, {_NETWORK: "none", **here}
    if same_function(saved[_NETWORK], here[_NETWORK]):
        del here[_NETWORK]
    for trait, ours in here.items():  # spaces come first, because other traits follow from them
        if trait == _ENCODERS and trait not in saved:
            raise UserError(
                "The saved policy reads images by a network of an earlier version of this package, which this version "
                "does not have; train the policy again, or load it with that version."
            )
        if saved[trait] != ours:
            raise UserError(
                f"The saved policy has {trait} {saved[trait]}, but here it is {ours}; load it with the same settings "
                "and spaces."
            )


def check_space(what: str, *, of_policy: spaces.Space, of_envs: spaces.Space) -> None:
    """Raise UserError if the space of the policy differs from that of a single environment.

    what: "observations" or "actions", for the message.
    """
    if _describe(of_envs) != _describe(of_policy):
        raise UserError(
            f"The policy was made for {what} {of_policy}, but those of the environments are {of_envs}; make a new "
            "policy for these spaces."
        )


def _encoders(config: PPOConfig) -> str:
    return "one for both networks" if config.share_encoder or config.share_layers else "one per network"


def _on_or_off(value: bool) -> str:
    return "on" if value else "off"


def _describe(space: spaces.Space) -> str:
    """Kind and shape of a space, without the bounds of a Box, which may change."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return str(space)
