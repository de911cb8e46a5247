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
    """What the loss compares with, from the rollout; `old_values` counts only where value clipping is on."""

    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    old_values: Tensor


class LossTerms(NamedTuple):
    """0-dim tensors. `approx_kl` is mean(ratio - 1 - log ratio), Schulman 2020, Approximating KL Divergence."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class LossGradients(NamedTuple):
    """The loss's derivatives: by each log-probability (B,), by each value (B,), and by every entropy alike."""

    d_log_probs: Tensor
    d_values: Tensor
    d_entropy: float


def normalize_advantages(advantages: Tensor) -> Tensor:
    """Mean 0 and deviation 1 (ddof 1) within the minibatch; a minibatch of one is left alone."""
    if len(advantages) < 2:
        return advantages
    variance, mean = torch.var_mean(advantages)
    return (advantages - mean) / (variance.sqrt() + 1e-8)


def ppo_loss(
    log_probs: Tensor, entropies: Tensor, values: Tensor, inputs: LossInputs, weights: LossWeights
) -> tuple[Tensor, LossTerms]:
    """The loss, differentiable by its first three arguments, and its parts, detached."""
    log_ratio = log_probs - inputs.old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - weights.clip_range, 1.0 + weights.clip_range)
    policy_loss = -torch.min(inputs.advantages * ratio, inputs.advantages * clipped).mean()
    errors = (values - inputs.returns).square()
    if weights.clip_range_vf is not None:
        bound = weights.clip_range_vf
        near = inputs.old_values + (values - inputs.old_values).clamp(-bound, bound)
        errors = torch.max(errors, (near - inputs.returns).square())
    value_loss = errors.mean()
    entropy = entropies.mean()
    loss = policy_loss + weights.vf_coef * value_loss - weights.ent_coef * entropy
    with torch.no_grad():
        terms = LossTerms(
            policy_loss.detach(), value_loss.detach(), entropy.detach(), *_ratio_statistics(ratio, log_ratio, weights)
        )
    return loss, terms


def ppo_loss_gradients(
    log_probs: Tensor, entropies: Tensor, values: Tensor, inputs: LossInputs, weights: LossWeights
) -> tuple[LossGradients, LossTerms]:
    """What autograd would find for `ppo_loss`, in a handful of kernels."""
    scale = 1.0 / len(log_probs)
    log_ratio = log_probs - inputs.old_log_probs
    ratio = log_ratio.exp()
    surrogate = inputs.advantages * ratio
    clipped = inputs.advantages * ratio.clamp(1.0 - weights.clip_range, 1.0 + weights.clip_range)
    # Where clipping makes the objective smaller, it is constant: no derivative.
    d_log_probs = (surrogate * (surrogate <= clipped)).mul_(-scale)
    policy_loss = -torch.min(surrogate, clipped).mean()

    residuals = values - inputs.returns
    d_values = residuals * (2.0 * weights.vf_coef * scale)
    errors = residuals.square()
    if weights.clip_range_vf is not None:
        moved = values - inputs.old_values
        inside = moved.abs() <= weights.clip_range_vf
        near_residuals = residuals - moved + moved.clamp(-weights.clip_range_vf, weights.clip_range_vf)
        near_errors = near_residuals.square()
        # The worse of the two counts; the clipped one is constant outside its range.
        d_values *= inside | (errors > near_errors)
        errors = torch.max(errors, near_errors)
    terms = LossTerms(policy_loss, errors.mean(), entropies.mean(), *_ratio_statistics(ratio, log_ratio, weights))
    return LossGradients(d_log_probs, d_values, -weights.ent_coef * scale), terms


def _ratio_statistics(ratio: Tensor, log_ratio: Tensor, weights: LossWeights) -> tuple[Tensor, Tensor]:
    approx_kl = (ratio - 1.0 - log_ratio).mean()
    clip_fraction = ((ratio - 1.0).abs() > weights.clip_range).float().mean()
    return approx_kl, clip_fraction
