"""The clipped PPO loss and its gradient: by autograd for any network, in closed form for two perceptrons.

loss = policy_loss + vf_coef * value_loss - ent_coef * entropy; each is a mean over B samples. The value loss is the
mean squared error, as in Stable-Baselines3. CleanRL halves it, so CleanRL's `vf_coef` of 0.5 is 0.25 here.
Tensors of the loss are float (B,). Both gradients are written to the `.grad` of the parameters; they agree up to
rounding. Source: Schulman et al. 2017, arXiv:1707.06347, eqs. 7 and 9.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.networks.mlp import PairedMlp
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch


class LossWeights(NamedTuple):
    """The constants of the loss in one update."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float


class LossRows(NamedTuple):
    """The parts of the loss per sample, detached, each (B,).

    `loss_terms` averages them once per update; a dozen operations per minibatch would take longer than the loss.
    """

    objectives: Tensor
    value_errors: Tensor
    entropies: Tensor
    log_ratios: Tensor


class LossTerms(NamedTuple):
    """Means over samples, as 0-dim tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class LossGradients(NamedTuple):
    """Derivatives of the loss: by each log-probability, (B,), by each value, (B,), and by every entropy, one number."""

    d_log_probs: Tensor
    d_values: Tensor
    d_entropy: float


def normalize_advantages(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 (ddof 1); a single advantage is returned unchanged."""
    if len(advantages) < 2:
        return advantages
    variance, mean = torch.var_mean(advantages)
    return (advantages - mean) / (variance.sqrt() + 1e-8)


def ppo_loss(
    log_probs: Tensor, entropies: Tensor, values: Tensor, inputs: LossInputs, weights: LossWeights
) -> tuple[Tensor, LossRows]:
    """The loss, differentiable by the first three arguments, and its parts per sample."""
    log_ratios = log_probs - inputs.old_log_probs
    objectives = torch.min(*_surrogates(log_ratios, inputs.advantages, weights.clip_range))
    errors = (values - inputs.returns).square()
    if weights.clip_range_vf is not None:
        bound = weights.clip_range_vf
        near = inputs.old_values + (values - inputs.old_values).clamp(-bound, bound)
        errors = torch.max(errors, (near - inputs.returns).square())
    loss = -objectives.mean() + weights.vf_coef * errors.mean() - weights.ent_coef * entropies.mean()
    return loss, LossRows(*(row.detach() for row in (objectives, errors, entropies, log_ratios)))


def ppo_loss_gradients(
    log_probs: Tensor, entropies: Tensor, values: Tensor, inputs: LossInputs, weights: LossWeights
) -> tuple[LossGradients, LossRows]:
    """The derivatives of `ppo_loss` in closed form, in a few operations, and its parts per sample."""
    scale = 1.0 / len(log_probs)
    log_ratios = log_probs - inputs.old_log_probs
    surrogates, clipped = _surrogates(log_ratios, inputs.advantages, weights.clip_range)
    # If the clipped surrogate is smaller, the objective is constant and its derivative is 0.
    d_log_probs = (surrogates * (surrogates <= clipped)).mul_(-scale)

    residuals = values - inputs.returns
    d_values = residuals * (2.0 * weights.vf_coef * scale)
    errors = residuals.square()
    if weights.clip_range_vf is not None:
        moved = values - inputs.old_values
        inside = moved.abs() <= weights.clip_range_vf
        near_errors = (residuals - moved + moved.clamp(-weights.clip_range_vf, weights.clip_range_vf)).square()
        # The larger error counts; the clipped error is constant outside the clip range.
        d_values *= inside | (errors > near_errors)
        errors = torch.max(errors, near_errors)
    rows = LossRows(torch.min(surrogates, clipped), errors, entropies, log_ratios)
    return LossGradients(d_log_probs, d_values, -weights.ent_coef * scale), rows


def loss_terms(rows: LossRows, clip_range: float) -> LossTerms:
    """Means of the parts of the loss, and how far the policy has moved."""
    moved = (rows.log_ratios.exp() - 1.0).abs() > clip_range
    return LossTerms(
        policy_loss=-rows.objectives.mean(),
        value_loss=rows.value_errors.mean(),
        entropy=rows.entropies.mean(),
        approx_kl=approx_kl(rows.log_ratios),
        clip_fraction=moved.float().mean(),
    )


def approx_kl(log_ratios: Tensor) -> Tensor:
    """mean(ratio - 1 - log ratio), never negative. Source: Schulman 2020, Approximating KL Divergence, k3."""
    return (log_ratios.exp() - 1.0 - log_ratios).mean()


class MinibatchGradients(Protocol):
    """Computes the gradients of one minibatch."""

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows: ...


class AutogradGradients:
    """Gradients by autograd, for any network. Tests compare all other implementations with this one."""

    def __init__(self, network: ActorCritic | GeneralActorCritic) -> None:
        self._network = network
        self._parameters = list(network.parameters())

    def __call__(self, minibatch: Minibatch, weights: LossWeights) -> LossRows:
        # As zero_grad(set_to_none=False), which walks through all modules (129 us, this 16, for three layers).
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss, rows = loss_of(self._network, minibatch, weights)
        loss.backward()
        return rows


class ClosedFormGradients:
    """Gradients in closed form, for two perceptrons whose parameters are in `paired_order` in memory.

    No graph is built, and each layer of both networks takes one product.
    """

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


def loss_of(
    network: ActorCritic | GeneralActorCritic, minibatch: Minibatch, weights: LossWeights
) -> tuple[Tensor, LossRows]:
    """The PPO loss, differentiable by the parameters of the network, and its parts per sample."""
    if minibatch.sequences is None:
        parameters, values = network(minibatch.observations)
    else:
        assert isinstance(network, GeneralActorCritic)
        parameters, values, _ = network.over_sequences(minibatch.observations, minibatch.sequences)
    log_probs, entropies = network.distribution.log_probs_and_entropies(parameters, minibatch.actions)
    return ppo_loss(log_probs, entropies, values, minibatch.inputs, weights)


def _surrogates(log_ratios: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Advantages times ratios, and advantages times clipped ratios; the smaller of the two is the objective."""
    ratios = log_ratios.exp()
    return advantages * ratios, advantages * ratios.clamp(1.0 - clip_range, 1.0 + clip_range)
