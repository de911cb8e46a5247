"""A policy ready to act: it preprocesses observations, chooses, and fits the choice to the action space."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.network_choice import network_for
from ml_pipeline.models.rl.policies.act_blocks import ActRows
from ml_pipeline.models.rl.policies.acting import ActingMemory, TorchActor, actor_for
from ml_pipeline.models.rl.policies.compatibility import check_space, check_traits, traits_of
from ml_pipeline.models.rl.policies.compiled_memory import CompiledMemory, CompiledRecurrent
from ml_pipeline.models.rl.policies.compiled_networks import (
    CompiledNetworks,
    can_compile,
    compile_if_possible,
    give_up_compiling,
)
from ml_pipeline.models.rl.policies.one_thread import one_thread
from ml_pipeline.models.rl.policies.value_units import ValueUnits
from ml_pipeline.models.rl.preprocessing.action_mask import check_masks
from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor
from ml_pipeline.models.rl.preprocessing.space_data import space_as_data, space_name
from ml_pipeline.models.rl.preprocessing.spaces import action_fitter, only_row
from ml_pipeline.runtime.seeding import random_generator

Array = np.ndarray
Perceptron = Callable[[torch.Tensor], torch.Tensor]


class Policy:
    """How to act. N environments, D observation size.

    `act` acts in a single environment; `choose` acts in N, on preprocessed observations. Learning changes the weights
    of `network`, the statistics of `observations`, and `values`, the units in which the critic predicts. `recurrent`
    runs a network with memory over rollouts, where `compile` could; else it is None.
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
        """A new policy for the spaces of a single environment; config: None means PPOConfig().

        Raises UnsupportedSpace if no network fits the spaces.
        """
        config = config or PPOConfig()
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = torch.device(device)
        self.squashes_actions = config.squash_actions
        self.observations = ObservationPreprocessor(
            observation_space, normalize=config.normalize_obs, clip=config.clip_obs
        )
        self.fit_actions = action_fitter(action_space, squash=config.squash_actions)
        generator = torch.Generator().manual_seed(int(random_generator(seed, "weights").integers(2**62)))
        with one_thread():  # the bits of orthogonal weights depend on the number of threads
            self.network = network_for(self.observations.layout, action_space, config, generator).to(device)
        self.distribution: Any = self.network.distribution
        self.values = ValueUnits(self.network, normalize=config.normalize_values)
        self._actor = actor_for(self.network)
        self._compiled: CompiledNetworks | None = None
        self.recurrent: CompiledRecurrent | None = None
        self._traits = traits_of(observation_space, action_space, config)
        self._spaces_as_data = {"observation": space_as_data(observation_space), "action": space_as_data(action_space)}
        self.act = Acting(self)

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Raise UserError if the policy was made for other spaces than these, of a single environment."""
        check_space("observations", of_policy=self.observation_space, of_envs=observation_space)
        check_space("actions", of_policy=self.action_space, of_envs=action_space)

    def compile(self) -> None:
        """Compile acting, evaluating and the statistics of observations, as far as that is possible.

        It pays from thousands of steps on.
        """
        if can_compile(self.network):
            try:
                if isinstance(self.network, ActorCritic):
                    self._compiled = CompiledNetworks(self.network)
                else:
                    self.recurrent = CompiledRecurrent(self.network)
            except Exception as error:  # numba's, of any kind
                give_up_compiling(error)
        if self.observations.normalizer is not None:
            compile_if_possible(self.observations.normalizer.compile)

    def refresh(self) -> None:
        """Act and evaluate with the weights as they are now; call it after they have changed or moved."""
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
        """The memory for acting in `num_envs` environments whose episodes begin; None for a policy without."""
        if isinstance(self.network, GeneralActorCritic) and self.network.state_size:
            return ActingMemory(self.network, num_envs)
        return None

    def new_rollout_memory(self, num_envs: int) -> ActingMemory | None:
        """The same for collecting, compiled if `compile` could; evaluations are those of a policy that is not."""
        if isinstance(self.network, GeneralActorCritic) and self.recurrent is not None:
            return CompiledMemory(self.recurrent, self.network, num_envs)
        return self.new_memory(num_envs)

    def acting_threads(self) -> AbstractContextManager[None]:
        """Within it, torch acts in one thread, so that actions have the same bits on machines with any number of cores.

        It has no effect if torch does not act, or not on a CPU. Whatever acts enters it by itself; an evaluation enters
        it once, which saves 0.12 ms per step.
        """
        return one_thread() if self._actor.uses_torch_threads else nullcontext()

    def choose(
        self, normalized: Array, noise: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> Array:
        """Sampled actions (n, ...) of the distribution, for observations (n, D) and their noise; `memory` moves on.

        at_hand: which of all environments these are, where a process has only some of them; each then gets the action
        that it gets among all. None means all. Raises UserError if a mask forbids every action.
        """
        if self._compiled is not None:
            return self._compiled.choose(normalized, noise)
        return self.distribution.sample(self.parameters(normalized, memory, at_hand), noise)

    def choose_and_value(
        self, normalized: Array, noise: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> tuple[Array, Array | None]:
        """What `choose` gives, and the parameters and the value, float32 (n, P + 1), of a policy that sees images and
        has no memory: evaluating these again would cost as much as acting. None of others.
        """
        if memory is not None or not isinstance(self._actor, TorchActor) or not self._actor.sees_images:
            return self.choose(normalized, noise, memory, at_hand), None
        self._check_masks(normalized)
        with self.acting_threads():
            outputs = self._actor.with_values(normalized, at_hand)
        return self.distribution.sample(outputs[:, :-1], noise), outputs

    def choose_likeliest(self, normalized: Array, memory: ActingMemory | None = None) -> Array:
        """The likeliest actions (N, ...) in place of sampled ones."""
        return self.distribution.mode(self.parameters(normalized, memory))

    def parameters(
        self, normalized: Array, memory: ActingMemory | None = None, at_hand: ActRows | None = None
    ) -> Array:
        """The parameters of the distribution: logits or means, float32 (n, P); the arguments are those of `choose`."""
        self._check_masks(normalized)
        with self.acting_threads():
            return (self._actor if memory is None else memory)(normalized, at_hand)

    def _check_masks(self, normalized: Array) -> None:
        mask = self.observations.layout.mask
        if mask is not None:
            check_masks(normalized[:, mask], self.action_space)

    def state_dict(self) -> dict[str, Any]:
        """Weights and statistics, with the traits that `load_state_dict` compares; copies, not views.

        "spaces" are those of a single environment as plain data, to make the policy again without an environment.
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
        """Take over a saved policy. Raises UserError, and changes nothing, if it was made for something else."""
        check_traits(state["fits"], self._traits)
        self.network.load_state_dict(state["network"])
        if self.observations.normalizer is not None:
            self.observations.normalizer.load_state_dict(state["normalizer"])
        self.values.load_state_dict(state["value_normalizer"])
        self.refresh()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> list[str]:
        """What the policy is, for a reader: observations and actions, then the kind of network."""
        traits = self._traits
        kind = [
            f"hidden sizes {traits['hidden sizes']}",
            traits["activation"],
            f"memory {traits['memory']}" if traits["memory"] != "none" else "",
            "shared layers" if traits["sharing of layers"] == "on" else "",
            str(self.device) if self.device.type != "cpu" else "",
        ]
        return [f"{space_name(self.observation_space)} -> {space_name(self.action_space)}", *filter(None, kind)]


class Acting:
    """Acts in a single environment, observation by observation: the likeliest action, or a sampled one.

    A recurrent policy remembers from call to call, until `begin_episode`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget all observations so far."""
        self._memory = self._policy.new_memory(1)

    def __call__(self, observation: Any, *, generator: np.random.Generator | None = None) -> Any:
        """The action for one observation: the likeliest, or sampled if a generator is given."""
        policy = self._policy
        normalized = policy.observations.process_one(observation)
        if generator is None:
            chosen = policy.choose_likeliest(normalized, self._memory)
        else:
            chosen = policy.choose(normalized, policy.distribution.draw_noise(generator, (1,)), self._memory)
        return only_row(policy.fit_actions(chosen))
