"""Acting with a network that is not compiled, in blocks of fixed rows. N environments, n of them at hand, S state size.

A row costs least in large blocks, but a rank computes whole blocks, and threads share blocks. On a Zen 4 core in us, in
a block of 8, of 32 and of 64 rows: GRU of 64 units 262, 336, 430; LSTM of 128 units 341, 524, 785; two layers of 512,
shared 154, 351, 613. Images of 84x84x4 in a block of 4 and of 8: 1594, 2410, so that
two threads take less for 8 environments.
"""

from typing import Protocol

import numpy as np
import torch

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.networks.mlp import NumpyMlp
from ml_pipeline.models.rl.policies.act_blocks import ActRows, act_in_blocks
from ml_pipeline.models.rl.policies.one_thread import in_threads
from ml_pipeline.models.rl.policies.transfers import Transfers

Array = np.ndarray

_BLOCK = 32
_BLOCK_OF_IMAGES = 4
_BLOCK_ON_GPU = 256  # whose rows cost next to nothing


class Actor(Protocol):
    """From observations to the distribution's parameters."""

    uses_torch_threads: bool
    """Whether torch computes on a CPU, whose bits may depend on its threads."""

    def refresh(self) -> None:
        """Read the weights again, after they have changed or moved."""

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """Observations (n, D) to the distribution's parameters, float32 (n, P). at_hand: None means all of n."""


def actor_for(network: ActorCritic | GeneralActorCritic) -> Actor:
    """For a policy without memory."""
    return NumpyActor(network) if isinstance(network, ActorCritic) else TorchActor(network)


class NumpyActor:
    """The actor of two perceptrons."""

    def __init__(self, network: ActorCritic) -> None:
        self._perceptron = NumpyMlp(network.actor)
        self.uses_torch_threads = self._perceptron.uses_torch
        self._size = _BLOCK if self._perceptron.uses_torch else NumpyMlp.MOST_ROWS

    def refresh(self) -> None:
        self._perceptron.refresh()

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        return act_in_blocks(self._perceptron, observations, at_hand=at_hand, size=self._size)


class TorchActor:
    """The actor without the critic, from NumPy to NumPy."""

    def __init__(self, network: GeneralActorCritic) -> None:
        self._network = network
        device = next(network.parameters()).device
        self.uses_torch_threads = device.type == "cpu"
        self._transfers = Transfers(device)
        self._size = block_size(network)
        self.sees_images = network.sees_images
        # Small networks answer before another thread has begun.
        self._each = in_threads if network.sees_images and not self._transfers.pins else None

    def refresh(self) -> None:
        """Does nothing: it reads the weights in place."""

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        return act_in_blocks(self._act, observations, at_hand=at_hand, size=self._size, each=self._each)

    def with_values(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """The parameters and the critic's value, float32 (n, P + 1)."""
        return act_in_blocks(self._act_and_value, observations, at_hand=at_hand, size=self._size, each=self._each)

    @torch.inference_mode()
    def _act_and_value(self, observations: Array) -> Array:
        parameters, values = self._network(self._transfers.to_device(observations))
        return self._transfers.to_host(torch.cat([parameters, values[:, None]], dim=1))

    @torch.inference_mode()
    def _act(self, observations: Array) -> Array:
        return self._transfers.to_host(self._network.parameters_of(self._transfers.to_device(observations)))


class ActingMemory:
    """The memory of a recurrent policy while it acts in n environments: `state`, float32 (n, S), 0 at first."""

    def __init__(self, network: GeneralActorCritic, num_envs: int) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)
        self._size = block_size(network)
        self._each = in_threads if network.sees_images and not self._transfers.pins else None
        self.state = np.zeros((num_envs, network.state_size), dtype=np.float32)

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """Observations (n, D) to the distribution's parameters, float32 (n, P); `state` moves on."""
        outputs = act_in_blocks(self._act, observations, self.state, at_hand=at_hand, size=self._size, each=self._each)
        n_parameters = outputs.shape[1] - self._network.state_size
        self.state = outputs[:, n_parameters:].copy()
        return outputs[:, :n_parameters]

    @torch.inference_mode()
    def _act(self, observations: Array, state: Array) -> Array:
        """Observations (N, D) and states (N, S) to parameters and next states side by side, float32 (N, P + S)."""
        seen = self._transfers.to_device(observations)
        starts = torch.zeros(1, len(observations), dtype=torch.bool, device=seen.device)
        sequences = Sequences(starts, self._transfers.to_device(state, "state"))
        parameters, _, states = self._network.over_sequences(seen, sequences)
        return self._transfers.to_host(torch.cat([parameters, states[0]], dim=1))

    def forget(self, done: Array) -> None:
        """Set the states of environments whose episode is over to 0; done: bool (n,)."""
        self.state = np.where(done[:, None], np.float32(0.0), self.state)


def block_size(network: GeneralActorCritic) -> int:
    """How many environments act together. It decides the last bits, so nothing but the policy decides it."""
    if next(network.parameters()).device.type != "cpu":
        return _BLOCK_ON_GPU
    return _BLOCK_OF_IMAGES if network.sees_images else _BLOCK
