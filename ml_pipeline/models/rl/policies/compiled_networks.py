"""Networks in compiled code on a CPU, if numba is installed: choosing actions, and evaluating rollouts.

T steps, N environments, D observation size, P parameters of the distribution, S state size.
"""

import logging
import os
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.networks.distributions import Categorical, DiagonalGaussian
from ml_pipeline.models.rl.policies.acting import ActingMemory, ActRows
from ml_pipeline.models.rl.transitions import Sequences

Array = np.ndarray

_log = logging.getLogger(__name__)  # its warnings go to stderr unless the program configures logging
_MOST_PARAMETERS = 1 << 18
"""With more weights than this, about 400 x 400 hidden units, torch is as fast."""
_MOST_RECURRENT = 1 << 20
"""The limit with memory. For 128 samples, in 1 and in 8 sequences, one core (Zen 4) takes with an LSTM of 64 units 1.2
and 0.8 ms compiled, 37 and 6 ms in torch; of 256 units (6e5 weights) 26 and 18 ms compiled, 64 and 17 ms in torch; of
512 units (2e6 weights) 116 and 81 ms compiled, 129 and 50 ms in torch."""
_failures: list[Exception] = []
"""Failures of numba in this process; after the first, it is not tried again."""


def can_compile(network: ActorCritic | GeneralActorCritic) -> bool:
    """Whether the kernel supports the network, and numba is installed and has not failed in this process."""
    if not has_numba():
        return False
    if isinstance(network, GeneralActorCritic) and not (network.state_size and network.sees_only_numbers):
        return False
    most = _MOST_PARAMETERS if isinstance(network, ActorCritic) else _MOST_RECURRENT
    parameters = list(network.parameters())
    return (
        type(network.distribution) in (Categorical, DiagonalGaussian)
        and parameters[0].device.type == "cpu"
        and parameters[0].dtype == torch.float32
        and sum(parameter.numel() for parameter in parameters) <= most
        and _kernel_imports()
    )


def has_numba() -> bool:
    """Whether numba is installed and has not failed in this process."""
    return find_spec("numba") is not None and os.name == "posix" and not _failures


def compile_if_possible(compile_it: Callable[[], None]) -> None:
    """Call `compile_it` if numba is installed; a failure is a warning."""
    if has_numba():
        try:
            compile_it()
        except Exception as error:  # numba raises many kinds
            give_up_compiling(error)


def tell_if_compiling(kernel: Any) -> None:
    """Log a warning if the kernel, a module, has no code on disk and will therefore be compiled."""
    if not any(Path(kernel.evaluate.stats.cache_path or ".").glob("kernel.evaluate*")):
        _log.warning("Compiling the update for this machine; this takes ten to twenty seconds, once.")


def give_up_compiling(error: Exception) -> None:
    """Stop compiling in this process, and warn with the reason."""
    _failures.append(error)
    reason = next(iter(str(error).splitlines()), "")
    warnings.warn(
        f"numba is installed but fails here ({type(error).__name__}: {reason}), so training continues in torch, "
        "several times slower; update numba to a version for this Python and NumPy.",
        stacklevel=3,
    )


class CompiledNetworks:
    """Two perceptrons in compiled code: outputs and sampled actions, each in one call.

    8 actions of a 64x64 network take 5 us, and 15 us in NumPy. The constructor compiles; it raises numba's exception if
    that fails.
    """

    def __init__(self, network: ActorCritic) -> None:
        from ml_pipeline.models.rl.compiled import kernel, layout

        tell_if_compiling(kernel)
        self._kernel = kernel
        self._network, self._weights = network, network.parameter_order()
        self._layout = layout.layout_of(network)
        self._parameters = np.zeros(self._layout.size, np.float32)
        self._acting = layout.new_acting(self._layout, self._parameters)
        self.refresh()
        observation = np.zeros((1, self._layout.layer(0, 0).inputs), np.float32)
        self.choose(observation, network.distribution.draw_noise(np.random.default_rng(0), (1,)))
        self.critic(torch.from_numpy(observation))

    def refresh(self) -> None:
        """Read the weights again."""
        flat = [parameter.detach().numpy().ravel() for parameter in self._weights]
        self._parameters[self._layout.places] = np.concatenate(flat)

    def choose(self, observations: Array, noise: Array) -> Array:
        """Observations, float32 (N, D), and noise of the distribution to actions."""
        actions: Array = np.empty(noise.shape, np.int64 if noise.ndim == 1 else np.float32)
        self._kernel.choose(self._acting, observations, noise, actions)
        return actions

    def actor(self, observations: Tensor) -> Tensor:
        """Float32 (N, D) to logits or means, (N, P)."""
        return self._outputs(0, observations)

    def critic(self, observations: Tensor) -> Tensor:
        """Float32 (N, D) to values, (N, 1)."""
        return self._outputs(1, observations)

    def _outputs(self, network: int, observations: Tensor) -> Tensor:
        outputs = torch.empty(len(observations), self._layout.layer(network, -1).outputs)
        self._kernel.evaluate(network, self._acting, observations.numpy(), outputs.numpy())
        return outputs


def _kernel_imports() -> bool:
    if not _failures:
        try:
            import_module("ml_pipeline.models.rl.compiled.kernel")
        except Exception as error:  # of any kind, because numba checks versions and loads libraries
            give_up_compiling(error)
    return not _failures


class CompiledRecurrent:
    """Recurrent actor and critic in compiled code. The constructor compiles; it raises numba's exception on failure."""

    def __init__(self, network: GeneralActorCritic) -> None:
        from ml_pipeline.models.rl.compiled.recurrent import kernel, layout

        tell_if_compiling(kernel)
        self._kernel = kernel
        self._arguments = layout
        self._network, self._weights = network, network.parameter_order()
        self._layout = layout.layout_of(network)
        self._new_workspace = layout.new_workspace
        self._workspaces: dict[tuple[int, int], Any] = {}
        self._parameters = np.zeros(self._layout.heads.size, np.float32)
        self._recurrent = layout.Recurrent(self._layout.heads.networks(self._parameters), self._layout.cells)
        self.refresh()
        self.step(np.zeros((1, self._layout.cells.inputs), np.float32), np.zeros((1, network.state_size), np.float32))

    def refresh(self) -> None:
        """Read the weights again."""
        flat = [parameter.detach().numpy().ravel() for parameter in self._weights]
        self._parameters[self._layout.heads.places] = np.concatenate(flat)

    def step(self, observations: Array, state: Array) -> tuple[Array, Array]:
        """One step: observations (N, D) and states (N, S) to parameters, (N, P), and the next states, (N, S).

        All are float32. The bits of a row depend neither on the other rows nor on N.
        """
        sequences = self._arguments.SequenceArrays(1, observations, np.zeros(len(observations), bool), state)
        return self._evaluated(sequences, np.empty(0, np.float32))

    def over_sequences(self, observations: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Observations (T, N, D) to parameters (T * N, P), values (T * N,) and states (T, N, S), without gradients."""
        starts, state = sequences
        rows = observations.flatten(0, 1).contiguous().numpy()
        values = np.empty(len(rows), np.float32)
        arrays = self._arguments.SequenceArrays(
            len(starts), rows, starts.contiguous().view(-1).numpy(), state.contiguous().numpy()
        )
        parameters, states = self._evaluated(arrays, values)
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
    """`ActingMemory` with compiled steps."""

    def __init__(self, compiled: CompiledRecurrent, network: GeneralActorCritic, num_envs: int) -> None:
        super().__init__(network, num_envs)
        self._compiled = compiled

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        parameters, self.state = self._compiled.step(observations, self.state)
        return parameters
