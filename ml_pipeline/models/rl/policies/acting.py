"""Acting with a `GeneralActorCritic`, with or without memory. N environments, S state size."""

import numpy as np
import torch

from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.policies.transfers import Transfers

Array = np.ndarray


class TorchActor:
    """The actor without the critic, from NumPy to NumPy."""

    def __init__(self, network: GeneralActorCritic) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)

    def refresh(self) -> None:
        """Does nothing: it reads the weights in place."""

    @torch.inference_mode()
    def __call__(self, observations: Array) -> Array:
        """Float32 (N, D) to the distribution's parameters, float32 (N, P)."""
        return self._transfers.to_host(self._network.parameters_of(self._transfers.to_device(observations)))


class ActingMemory:
    """The memory of a recurrent policy while it acts in N environments: `state`, float32 (N, S), 0 at first."""

    def __init__(self, network: GeneralActorCritic, num_envs: int) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)
        self.state = np.zeros((num_envs, network.state_size), dtype=np.float32)

    @torch.inference_mode()
    def __call__(self, observations: Array) -> Array:
        """Float32 (N, D) to the distribution's parameters, float32 (N, P); `state` moves on."""
        seen = self._transfers.to_device(observations)
        starts = torch.zeros(1, len(observations), dtype=torch.bool, device=seen.device)
        sequences = Sequences(starts, self._transfers.to_device(self.state, "state"))
        parameters, _, states = self._network.over_sequences(seen, sequences)
        outputs = self._transfers.to_host(torch.cat([parameters, states[0]], dim=1))
        self.state = outputs[:, parameters.shape[1] :].copy()
        return outputs[:, : parameters.shape[1]]

    def forget(self, done: Array) -> None:
        """Set the states of environments whose episode is over to 0; done: bool (N,)."""
        self.state = np.where(done[:, None], np.float32(0.0), self.state)
