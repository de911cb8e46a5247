"""The clipped PPO loss, and its derivatives in closed form. B samples; every tensor is float (B,).

loss = policy_loss + vf_coef * value_loss - ent_coef * entropy, each a mean over the B samples. The value loss is the
mean square error, as in Stable-Baselines3; implementations that halve it (CleanRL) need half our `vf_coef`.
Source: Schulman et al. 2017, arXiv:1707.06347, eqs. 7 and 9.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class LossWeights(NamedTuple):
    """The loss's constants, as they stand in this update."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float


class LossInputs(NamedTuple):
    """The rollout's part in the loss; `old_values` matter only with value clipping."""

    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    old_values: Tensor


class LossRows(NamedTuple):
    """The loss's parts sample by sample, detached, each (B,); `loss_terms` averages them.

    They are averaged once per update: a dozen kernels per minibatch would cost more than the loss.
    """

    objectives: Tensor
    value_errors: Tensor
    entropies: Tensor
    log_ratios: Tensor


class LossTerms(NamedTuple):
    """Means over samples; 0-dim tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class LossGradients(NamedTuple):
    """The loss's derivatives: by each log-probability (B,), by each value (B,), and by any entropy, one number."""

    d_log_probs: Tensor
    d_values: Tensor
    d_entropy: float


def normalize_advantages(advantages: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 (ddof 1) within the minibatch; a minibatch of one stays as it is."""
    if len(advantages) < 2:
        return advantages
    variance, mean = torch.var_mean(advantages)
    return (advantages - mean) / (variance.sqrt() + 1e-8)


def ppo_loss(
    log_probs: Tensor, entropies: Tensor, values: Tensor, inputs: LossInputs, weights: LossWeights
) -> tuple[Tensor, LossRows]:
    """The loss, differentiable by its first three arguments, and its parts."""
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
    """The derivatives that autograd would find for `ppo_loss`, in a handful of kernels."""
    scale = 1.0 / len(log_probs)
    log_ratios = log_probs - inputs.old_log_probs
    surrogates, clipped = _surrogates(log_ratios, inputs.advantages, weights.clip_range)
    # If clipping makes the objective smaller, it is constant: no derivative.
    d_log_probs = (surrogates * (surrogates <= clipped)).mul_(-scale)

    residuals = values - inputs.returns
    d_values = residuals * (2.0 * weights.vf_coef * scale)
    errors = residuals.square()
    if weights.clip_range_vf is not None:
        moved = values - inputs.old_values
        inside = moved.abs() <= weights.clip_range_vf
        near_errors = (residuals - moved + moved.clamp(-weights.clip_range_vf, weights.clip_range_vf)).square()
        # The larger error counts; the clipped one is constant outside its range.
        d_values *= inside | (errors > near_errors)
        errors = torch.max(errors, near_errors)
    rows = LossRows(torch.min(surrogates, clipped), errors, entropies, log_ratios)
    return LossGradients(d_log_probs, d_values, -weights.ent_coef * scale), rows


def _surrogates(log_ratios: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """The advantages times the ratios, and times the clipped ratios: the smaller of the two is the objective."""
    ratios = log_ratios.exp()
    return advantages * ratios, advantages * ratios.clamp(1.0 - clip_range, 1.0 + clip_range)


def loss_terms(rows: LossRows, clip_range: float) -> LossTerms:
    """Means of the loss's parts, and of how far the policy has moved."""
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
