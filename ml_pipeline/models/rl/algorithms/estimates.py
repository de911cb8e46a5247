"""From a full rollout to what an update learns from. T steps, N environments, B = T * N."""

from typing import NamedTuple

import numpy as np
import torch

from ml_pipeline.models.rl.algorithms.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.algorithms.ppo_loss import LossInputs
from ml_pipeline.models.rl.core.gae import compute_gae
from ml_pipeline.models.rl.core.rollout_buffer import RolloutBuffer
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic

Array = np.ndarray


class Estimates(NamedTuple):
    """The whole rollout as one batch of B, and the share of the returns' variance that the values explain."""

    batch: Minibatch
    explained_variance: float


@torch.no_grad()
def estimate(buffer: RolloutBuffer, network: ActorCritic, *, gamma: float, gae_lambda: float) -> Estimates:
    """Values, log-probabilities, advantages and returns of a full rollout, each network run once, on all of it."""
    device = next(network.parameters()).device
    n_steps, num_envs, size = buffer.n_steps, buffer.observations.shape[1], buffer.observations.shape[2]
    n_samples = n_steps * num_envs
    observations = torch.from_numpy(buffer.observations).to(device).view(-1, size)  # ((T + 1) * N, D)
    actions = torch.from_numpy(buffer.actions).to(device).flatten(0, 1)  # (B, ...)

    all_values = network.critic(observations).view(n_steps + 1, num_envs).cpu().numpy()
    parameters = network.actor(observations[:n_samples])
    log_probs, _ = network.distribution.log_probs_and_entropies(parameters, actions)

    values, next_values = all_values[:-1], all_values[1:].copy()
    if buffer.final_observations:
        steps, envs, finals = zip(*buffer.final_observations, strict=True)
        final_values = network.critic(torch.from_numpy(np.stack(finals)).to(device)).squeeze(1)
        next_values[list(steps), list(envs)] = final_values.cpu().numpy()
    advantages, returns = compute_gae(
        buffer.rewards,
        values,
        next_values,
        buffer.terminated,
        buffer.terminated | buffer.truncated,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    on_device = [torch.from_numpy(array).to(device).flatten() for array in (advantages, returns, values)]
    inputs = LossInputs(log_probs, *on_device)
    return Estimates(Minibatch(observations[:n_samples], actions, inputs), explained_variance(values, returns))


def explained_variance(values: Array, returns: Array) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant; NaN for constant returns."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(returns - values)) / variance
