"""Acting with a `GeneralActorCritic`: by torch, and with memory where it has one. N environments, S state size."""

import numpy as np
import torch

from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.policies.transfers import Transfers

Array = np.ndarray


class TorchActor:
    """The actor alone, from and to NumPy."""

    def __init__(self, network: GeneralActorCritic) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)

    def refresh(self) -> None:
        """Nothing to do: it reads the weights where they are."""

    @torch.inference_mode()
    def __call__(self, observations: Array) -> Array:
        """Float32 (N, D) to the distribution's parameters, float32 (N, P)."""
        return self._transfers.to_host(self._network.parameters_of(self._transfers.to_device(observations)))


class ActingMemory:
    """What a recurrent policy remembers of N environments while it acts: `state`, float32 (N, S), 0 at first."""

    def __init__(self, network: GeneralActorCritic, num_envs: int) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)
        self.state = np.zeros((num_envs, network.state_size), dtype=np.float32)

    @torch.inference_mode()
    def __call__(self, observations: Array) -> Array:
        """Float32 (N, D) to the distribution's parameters, float32 (N, P); from now on these are remembered."""
        seen = self._transfers.to_device(observations)
        starts = torch.zeros(1, len(observations), dtype=torch.bool, device=seen.device)
        sequences = Sequences(starts, self._transfers.to_device(self.state, "state"))
        parameters, _, states = self._network.over_sequences(seen, sequences)
        answer = self._transfers.to_host(torch.cat([parameters, states[0]], dim=1))
        self.state = answer[:, parameters.shape[1] :].copy()
        return answer[:, : parameters.shape[1]]

    def forget(self, done: Array) -> None:
        """Forget the environments whose episode is over; done: bool (N,)."""
        self.state = np.where(done[:, None], np.float32(0.0), self.state)
