"""The gradient of the PPO loss over a minibatch: in closed form where the network is known, by autograd elsewhere.

Both leave the gradient in the parameters' `.grad`, overwriting what was there, and return the loss's terms; on the same
minibatch they agree to rounding. B samples, D observation size.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ml_pipeline.models.rl.algorithms.ppo_loss import LossInputs, LossTerms, LossWeights, ppo_loss, ppo_loss_gradients
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic


class Minibatch(NamedTuple):
    """observations: float32 (B, D); actions: (B, ...) as the distribution gave them; inputs: each float32 (B,)."""

    observations: Tensor
    actions: Tensor
    inputs: LossInputs


class MinibatchGradients(Protocol):
    """Computes gradients and loss terms of one minibatch."""

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossTerms: ...


class AutogradGradients:
    """For any network; the reference that the closed form is tested against."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossTerms:
        self._network.zero_grad(set_to_none=False)
        parameters, values = self._network(minibatch.observations)
        log_probs, entropies = self._network.distribution.log_probs_and_entropies(parameters, minibatch.actions)
        loss, terms = ppo_loss(log_probs, entropies, values, minibatch.inputs, weights)
        loss.backward()
        return terms


class ClosedFormGradients:
    """For two perceptrons: no graph, no allocation of activations.

    At 64x64 an update is nearly all overhead, and most of the overhead is the graph.
    """

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._actor = _MlpGradients(network.actor)
        self._critic = _MlpGradients(network.critic)

    @torch.no_grad()
    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossTerms:
        distribution = self._network.distribution
        for parameter in distribution.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        parameters = self._actor.forward(minibatch.observations)
        values = self._critic.forward(minibatch.observations).squeeze(1)
        log_probs, entropies = distribution.log_probs_and_entropies(parameters, minibatch.actions)
        gradients, terms = ppo_loss_gradients(log_probs, entropies, values, minibatch.inputs, weights)
        d_parameters = distribution.backward(parameters, minibatch.actions, gradients.d_log_probs, gradients.d_entropy)
        self._actor.backward(d_parameters)
        self._critic.backward(gradients.d_values[:, None])
        return terms


class _MlpGradients:
    """Forward and backward of one `build_mlp` network; activations live in buffers kept for each batch size."""

    def __init__(self, network: nn.Sequential) -> None:
        self._linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self._tanh = any(isinstance(layer, nn.Tanh) for layer in network)
        self._buffers: dict[int, list[Tensor]] = {}
        self._activations: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        buffers = self._buffers.get(len(inputs))
        if buffers is None:
            buffers = [inputs.new_empty(len(inputs), layer.out_features) for layer in self._linear]
            self._buffers[len(inputs)] = buffers
        self._activations = [inputs, *buffers]
        last = len(buffers) - 1
        for i, layer in enumerate(self._linear):
            torch.addmm(layer.bias, self._activations[i], layer.weight.t(), out=buffers[i])
            if i < last:
                _ = buffers[i].tanh_() if self._tanh else buffers[i].relu_()
        return buffers[last]

    def backward(self, d_outputs: Tensor) -> None:
        for i in range(len(self._linear) - 1, -1, -1):
            layer, inputs = self._linear[i], self._activations[i]
            torch.mm(d_outputs.t(), inputs, out=layer.weight.grad)
            torch.sum(d_outputs, 0, out=layer.bias.grad)
            if i > 0:
                d_inputs = torch.mm(d_outputs, layer.weight)
                if self._tanh:
                    d_outputs = torch.ops.aten.tanh_backward(d_inputs, inputs)
                else:
                    d_outputs = torch.ops.aten.threshold_backward(d_inputs, inputs, 0.0)
