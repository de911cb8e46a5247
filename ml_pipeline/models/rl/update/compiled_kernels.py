"""The compiled kernels of two kinds of networks, called alike by `compiled_steps`.

B samples, P numbers in a padded vector, E epochs, T steps, M sequences.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.update.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.update.ppo_loss import LossInputs

if TYPE_CHECKING:
    from ml_pipeline.models.rl.compiled.layout import Layout

Array = np.ndarray


class Kernel(Protocol):
    """One network's update and its arguments, as the modules `arguments` of `compiled` describe them."""

    update: Any
    layout: "Layout"
    n_units: int
    """Parts of a chunk's gradient that threads compute side by side."""

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        """parameters: float32 (P,). vectors: transposed, means and squares, float32 (P,), gradients, float32 (C, P)."""

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        """orders: int64 (E, B)."""

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        """For as many threads; batch: of the size, or the shape of sequences, that they are for."""

    def smallest_batch(self) -> Minibatch:
        """One sample of zeros."""


def kernel_for(network: ActorCritic | GeneralActorCritic) -> Kernel:
    """Raises what numba raises if it fails."""
    return PerceptronKernel(network) if isinstance(network, ActorCritic) else RecurrentKernel(network)


class PerceptronKernel:
    """Two perceptrons."""

    n_units = 1

    def __init__(self, network: ActorCritic) -> None:
        from ml_pipeline.models.rl.compiled import arguments, kernel, layout

        self.update = kernel.update
        self.layout = layout.layout_of(network)
        self._arguments = arguments
        self._new_workspace = layout.new_workspace
        self._workspaces: list[Any] = []
        self._network = network

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        return self._arguments.Learner(self.layout.networks(parameters), self.layout.ends, **vectors)

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        observations, inputs = batch.observations.contiguous().numpy(), torch.stack(batch.inputs).numpy()
        return self._arguments.Samples(observations, batch.actions.numpy(), inputs, orders)

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        while len(self._workspaces) < n_threads:
            self._workspaces.append(self._new_workspace(self.layout))
        return self._workspaces

    def smallest_batch(self) -> Minibatch:
        return _one_sample(self._network, observation_size=self.layout.layer(0, 0).inputs)


class RecurrentKernel:
    """One or two recurrent networks; each is a unit."""

    def __init__(self, network: GeneralActorCritic) -> None:
        from ml_pipeline.models.rl.compiled.recurrent import arguments, kernel, layout

        self.update = kernel.update
        self._layout = layout.layout_of(network)
        self.layout = self._layout.heads
        self.n_units = len(self._layout.cells.places)
        self._arguments = arguments
        self._new_workspace = layout.new_workspace
        self._workspaces: list[Any] = []
        self._shape = torch.Size((0, 0))
        self._network = network

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        networks = self.layout.networks(parameters)
        return self._arguments.Learner(networks, self.layout.ends, **vectors, cells=self._layout.cells)

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        assert batch.sequences is not None
        starts, state = batch.sequences
        sequences = self._arguments.Sequences(
            len(starts),
            batch.observations.contiguous().numpy(),
            starts.contiguous().view(-1).numpy(),
            state.contiguous().numpy(),
        )
        inputs = torch.stack(batch.inputs).numpy()
        return self._arguments.Samples(batch.actions.numpy(), inputs, orders, sequences)

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        assert batch.sequences is not None
        shape = batch.sequences.starts.shape
        if shape != self._shape or len(self._workspaces) < n_threads:
            length, n_sequences = self._shape = shape
            self._workspaces = [
                self._new_workspace(self._layout, length=length, n_sequences=n_sequences) for _ in range(n_threads)
            ]
        return self._workspaces

    def smallest_batch(self) -> Minibatch:
        sequences = Sequences(torch.zeros(1, 1, dtype=torch.bool), torch.zeros(1, self._network.state_size))
        return _one_sample(self._network, observation_size=self._layout.cells.inputs)._replace(sequences=sequences)


def _one_sample(network: ActorCritic | GeneralActorCritic, *, observation_size: int) -> Minibatch:
    action = network.distribution.mode(np.zeros((1, network.distribution.num_parameters), np.float32))
    zero = torch.zeros(1)
    return Minibatch(torch.zeros(1, observation_size), torch.from_numpy(action), LossInputs(zero, zero, zero, zero))
