"""Two perceptrons run by the compiled kernel on a CPU, if numba is installed: choosing actions, and evaluating.

`compiled_memory` is the same for recurrent networks.
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

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.distributions import Categorical, DiagonalGaussian
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic

Array = np.ndarray

_log = logging.getLogger(__name__)  # whose warnings go to stderr unless the program sets up logging
_MOST_PARAMETERS = 1 << 18
"""Above this many weights, torch is as fast: 400 x 400 hidden units."""
_MOST_RECURRENT = 1 << 20
"""With memory. A core's ms for 128 samples in 1 and in 8 sequences (Zen 4), compiled and in torch: LSTM 64, 1.2 and 0.8
against 37 and 6; LSTM 256 (6e5 weights), 26 and 18 against 64 and 17; LSTM 512 (2e6), 116 and 81 against 129 and 50."""
_failures: list[Exception] = []
"""Failures of numba in this process; it is not tried again after the first."""


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
    """Call what compiles by numba; nothing happens where numba is not, and a failure is a warning."""
    if has_numba():
        try:
            compile_it()
        except Exception as error:  # numba's, of any kind
            give_up_compiling(error)


def tell_if_compiling(kernel: Any) -> None:
    """Log that the kernel, a module, has no code on disk, and will be compiled."""
    if not any(Path(kernel.evaluate.stats.cache_path or ".").glob("kernel.evaluate*")):
        _log.warning("Compiling the update for this machine; this takes ten to twenty seconds, once.")


def give_up_compiling(error: Exception) -> None:
    """Compile nothing more in this process; warns, with the reason."""
    _failures.append(error)
    reason = next(iter(str(error).splitlines()), "")
    warnings.warn(
        f"numba is installed but fails here ({type(error).__name__}: {reason}), so training goes on in torch, several "
        "times slower; an update of numba may bring one that fits this Python and numpy.",
        stacklevel=3,
    )


class CompiledNetworks:
    """Outputs and sampled actions, each in one call: 8 actions of a 64x64 network take 5 us, 15 in NumPy.

    The constructor compiles, and raises what numba raises if it fails.
    """

    def __init__(self, network: ActorCritic) -> None:
        from ml_pipeline.models.rl.compiled import kernel, layout

        tell_if_compiling(kernel)
        self._kernel = kernel
        self._network = network
        self._layout = layout.layout_of(network)
        self._parameters = np.zeros(self._layout.size, np.float32)
        self._acting = layout.new_acting(self._layout, self._parameters)
        self.refresh()
        observation = np.zeros((1, self._layout.layer(0, 0).inputs), np.float32)
        self.choose(observation, network.distribution.draw_noise(np.random.default_rng(0), (1,)))
        self.critic(torch.from_numpy(observation))

    def refresh(self) -> None:
        """Read the weights again."""
        flat = [parameter.detach().numpy().ravel() for parameter in self._network.parameter_order()]
        self._parameters[self._layout.places] = np.concatenate(flat)

    def choose(self, observations: Array, noise: Array) -> Array:
        """Float32 (N, D) and the distribution's noise to its actions."""
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
        except Exception as error:  # of any kind: numba checks versions, and loads libraries
            give_up_compiling(error)
    return not _failures
