"""Two perceptrons run by the compiled kernel on a CPU, if numba is installed: choosing actions, and evaluating."""

import logging
import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

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
_failures: list[Exception] = []
"""Failures of numba in this process; it is not tried again after the first."""


def can_compile(network: ActorCritic | GeneralActorCritic) -> bool:
    """Whether the kernel supports the network, and numba is installed and has not failed in this process."""
    if find_spec("numba") is None or os.name != "posix" or not isinstance(network, ActorCritic):
        return False
    parameters = list(network.parameters())
    return (
        type(network.distribution) in (Categorical, DiagonalGaussian)
        and parameters[0].device.type == "cpu"
        and parameters[0].dtype == torch.float32
        and sum(parameter.numel() for parameter in parameters) <= _MOST_PARAMETERS
        and _kernel_imports()
    )


def give_up_compiling(error: Exception) -> None:
    """Compile nothing more in this process; warns, with the reason."""
    _failures.append(error)
    reason = next(iter(str(error).splitlines()), "")
    warnings.warn(
        f"numba is installed but fails here ({type(error).__name__}: {reason}), so training goes on in torch, several "
        "times slower; `pip install -U numba` may bring one that fits this Python and numpy.",
        stacklevel=3,
    )


class CompiledNetworks:
    """Outputs and sampled actions, each in one call: 8 actions of a 64x64 network take 5 us, 15 in NumPy.

    The constructor compiles, and raises what numba raises if it fails.
    """

    def __init__(self, network: ActorCritic) -> None:
        from ml_pipeline.models.rl.compiled import kernel, layout

        if not any(Path(kernel.update.stats.cache_path or ".").glob("kernel.update*")):
            _log.warning("Compiling the update for this machine; this takes about ten seconds, once.")
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
