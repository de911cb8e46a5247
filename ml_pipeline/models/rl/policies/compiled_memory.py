"""Recurrent networks run by the compiled kernel on a CPU, if numba is installed: acting, and over whole rollouts.

T steps, N environments, D observation size, P parameters of the distribution, S state size.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.policies.act_blocks import ActRows
from ml_pipeline.models.rl.policies.acting import ActingMemory
from ml_pipeline.models.rl.policies.compiled_networks import tell_if_compiling

Array = np.ndarray


class CompiledRecurrent:
    """A recurrent actor and critic. The constructor compiles, and raises what numba raises if it fails."""

    def __init__(self, network: GeneralActorCritic) -> None:
        from ml_pipeline.models.rl.compiled.recurrent import arguments, kernel, layout

        tell_if_compiling(kernel)
        self._kernel = kernel
        self._arguments = arguments
        self._network = network
        self._layout = layout.layout_of(network)
        self._new_workspace = layout.new_workspace
        self._workspaces: dict[tuple[int, int], Any] = {}
        self._parameters = np.zeros(self._layout.heads.size, np.float32)
        self._recurrent = arguments.Recurrent(self._layout.heads.networks(self._parameters), self._layout.cells)
        self.refresh()
        self.step(np.zeros((1, self._layout.cells.inputs), np.float32), np.zeros((1, network.state_size), np.float32))

    def refresh(self) -> None:
        """Read the weights again."""
        flat = [parameter.detach().numpy().ravel() for parameter in self._network.parameter_order()]
        self._parameters[self._layout.heads.places] = np.concatenate(flat)

    def step(self, observations: Array, state: Array) -> tuple[Array, Array]:
        """Float32 (N, D) and (N, S) to the distribution's parameters, (N, P), and the states after the step, (N, S).

        The bits of a row do not depend on the others, nor on N.
        """
        sequences = self._arguments.Sequences(1, observations, np.zeros(len(observations), bool), state)
        return self._evaluated(sequences, np.empty(0, np.float32))

    def over_sequences(self, observations: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Float (T, N, D) to parameters (T * N, P), values (T * N,) and states (T, N, S), without gradients."""
        starts, state = sequences
        rows = observations.flatten(0, 1).contiguous().numpy()
        values = np.empty(len(rows), np.float32)
        arguments = self._arguments.Sequences(
            len(starts), rows, starts.contiguous().view(-1).numpy(), state.contiguous().numpy()
        )
        parameters, states = self._evaluated(arguments, values)
        return torch.from_numpy(parameters), torch.from_numpy(values), torch.from_numpy(states).view(*starts.shape, -1)

    def _evaluated(self, sequences: Any, values: Array) -> tuple[Array, Array]:
        n_samples, n_sequences = len(sequences.observations), len(sequences.state)
        order = np.arange(n_samples).reshape(sequences.length, n_sequences).T.ravel()
        parameters = np.empty((n_samples, self._network.distribution.num_parameters), np.float32)
        states = np.empty((n_samples, self._network.state_size), np.float32)
        workspace = self._workspace(sequences.length, n_sequences)
        outputs = self._arguments.Outputs(parameters, values, states)
        self._kernel.evaluate(self._recurrent, sequences, order, workspace, outputs)
        return parameters, states

    def _workspace(self, length: int, n_sequences: int) -> Any:
        shape = length, n_sequences
        if shape not in self._workspaces:
            self._workspaces[shape] = self._new_workspace(self._layout, length=length, n_sequences=n_sequences)
        return self._workspaces[shape]


class CompiledMemory(ActingMemory):
    """`ActingMemory` whose steps are compiled."""

    def __init__(self, compiled: CompiledRecurrent, network: GeneralActorCritic, num_envs: int) -> None:
        super().__init__(network, num_envs)
        self._compiled = compiled

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        parameters, self.state = self._compiled.step(observations, self.state)
        return parameters
