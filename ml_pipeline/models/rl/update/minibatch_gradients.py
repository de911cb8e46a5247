"""The gradient of the PPO loss over a minibatch: in closed form for two perceptrons, by autograd for any network.

Both write the gradient to the parameters' `.grad` and return the parts of the loss; for the same minibatch they agree
but for rounding. B samples, D observation size.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.networks.paired_mlp import PairedMlp
from ml_pipeline.models.rl.update.ppo_loss import LossInputs, LossRows, LossWeights, ppo_loss, ppo_loss_gradients


class Minibatch(NamedTuple):
    """observations: (B, D), float32, or uint8 of images alone. actions: (B, ...), as the distribution gave them.
    inputs: each float32 (B,).

    sequences: for a policy with memory; B is then T * M, whole sequences, one step after another.
    """

    observations: Tensor
    actions: Tensor
    inputs: LossInputs
    sequences: Sequences | None = None


class MinibatchGradients(Protocol):
    """Computes the gradients of one minibatch."""

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows: ...


def loss_of(
    network: ActorCritic | GeneralActorCritic, minibatch: Minibatch, weights: LossWeights
) -> tuple[Tensor, LossRows]:
    """The PPO loss, differentiable by the network's parameters, and its parts."""
    if minibatch.sequences is None:
        parameters, values = network(minibatch.observations)
    else:
        assert isinstance(network, GeneralActorCritic)
        parameters, values, _ = network.over_sequences(minibatch.observations, minibatch.sequences)
    log_probs, entropies = network.distribution.log_probs_and_entropies(parameters, minibatch.actions)
    return ppo_loss(log_probs, entropies, values, minibatch.inputs, weights)


class AutogradGradients:
    """For any network; the closed form, the compiled kernel and chunks are tested against it."""

    def __init__(self, network: ActorCritic | GeneralActorCritic) -> None:
        self._network = network

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows:
        self._network.zero_grad(set_to_none=False)
        loss, rows = loss_of(self._network, minibatch, weights)
        loss.backward()
        return rows


class ClosedFormGradients:
    """For two perceptrons whose parameters lie in `paired_order`: without a graph, and with one product for both."""

    def __init__(self, network: ActorCritic) -> None:
        self._distribution = network.distribution
        self._networks = PairedMlp(network.actor, network.critic)

    @torch.inference_mode()
    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows:
        for parameter in self._distribution.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        parameters, values = self._networks.forward(minibatch.observations)
        log_probs, entropies, backward = self._distribution.closed_form(parameters, minibatch.actions)
        gradients, rows = ppo_loss_gradients(log_probs, entropies, values.squeeze(1), minibatch.inputs, weights)
        d_parameters = backward(gradients.d_log_probs, gradients.d_entropy)
        self._networks.backward([d_parameters, gradients.d_values[:, None]])
        return rows
