"""From a full rollout to what an update learns from. T steps, N environments, B = T * N."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.models.rl.algorithms.minibatch_gradients import Minibatch
from ml_pipeline.models.rl.algorithms.ppo_loss import LossInputs
from ml_pipeline.models.rl.core.gae import compute_gae
from ml_pipeline.models.rl.core.rollout_buffer import RolloutBuffer
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.networks.policy import Policy

Array = np.ndarray


class Estimates(NamedTuple):
    """The whole rollout as one batch of B, and the share of the returns' variance that the values explain."""

    batch: Minibatch
    explained_variance: float


@torch.no_grad()
def estimate(buffer: RolloutBuffer, policy: Policy, *, gamma: float, gae_lambda: float) -> Estimates:
    """Values, log-probabilities, advantages and returns of a full rollout, each network run once, on all of it."""
    n_steps, num_envs, size = buffer.n_steps, buffer.observations.shape[1], buffer.observations.shape[2]
    n_samples, device = n_steps * num_envs, policy.device
    observations = torch.from_numpy(buffer.observations).to(device).view(-1, size)  # ((T + 1) * N, D)
    actions = torch.from_numpy(buffer.actions).to(device).flatten(0, 1)  # (B, ...)
    done = buffer.terminated | buffer.truncated

    network, sequences, states = policy.network, None, None
    if isinstance(network, ActorCritic):
        actor, critic = policy.actor_and_critic
        parameters, all_values = actor(observations[:n_samples]), critic(observations)
    elif buffer.memory is None:
        parameters, all_values = network(observations)
    else:
        sequences = _sequences(done, buffer.memory, device)
        parameters, all_values, states = network.over_sequences(observations, sequences)
        sequences = Sequences(sequences.starts[:n_steps], sequences.state)
    log_probs, _ = network.distribution.log_probs_and_entropies(parameters[:n_samples], actions)

    value_rows = _in_units_of_rewards(all_values, policy).view(n_steps + 1, num_envs).cpu().numpy()
    values, next_values = value_rows[:-1], value_rows[1:].copy()
    if buffer.final_observations:
        steps, envs, finals = zip(*buffer.final_observations, strict=True)
        rows = torch.from_numpy(np.stack(finals)).to(device)
        remembered = None if states is None else states[list(steps), list(envs)]
        next_values[list(steps), list(envs)] = (
            _in_units_of_rewards(_values_of(network, rows, remembered), policy).cpu().numpy()
        )
    advantages, returns = compute_gae(
        buffer.rewards, values, next_values, buffer.terminated, done, gamma=gamma, gae_lambda=gae_lambda
    )
    on_device = [torch.from_numpy(array).to(device).flatten() for array in (advantages, returns, values)]
    inputs = LossInputs(log_probs, *on_device)
    batch = Minibatch(observations[:n_samples], actions, inputs, sequences)
    return Estimates(batch, explained_variance(values, returns))


def with_normalized_values(batch: Minibatch, policy: Policy) -> Minibatch:
    """Let the policy's value normalizer learn the returns; they and the old values then come in its new units."""
    normalizer = policy.value_normalizer
    assert normalizer is not None
    policy.learn_value_units(batch.inputs.returns.cpu().numpy())
    returns, old_values = (
        (row - normalizer.mean) / normalizer.deviation for row in (batch.inputs.returns, batch.inputs.old_values)
    )
    return batch._replace(inputs=batch.inputs._replace(returns=returns, old_values=old_values))


def _in_units_of_rewards(predictions: Tensor, policy: Policy) -> Tensor:
    normalizer = policy.value_normalizer
    return predictions if normalizer is None else predictions * normalizer.deviation + normalizer.mean


def _sequences(done: Array, memory: Array, device: torch.device) -> Sequences:
    """Of T + 1 steps: an episode starts where one ended in the step before; the memory already knows of the first."""
    starts = np.concatenate([np.zeros_like(done[:1]), done])
    return Sequences(torch.from_numpy(starts).to(device), torch.from_numpy(memory).to(device))


def _values_of(network: ActorCritic | GeneralActorCritic, observations: Tensor, remembered: Tensor | None) -> Tensor:
    """Values, (K,), of K observations; remembered: float32 (K, S), what their episodes had left in memory."""
    if isinstance(network, ActorCritic):
        return network.critic(observations).squeeze(1)
    if remembered is None:
        return network(observations)[1]
    no_starts = torch.zeros(1, len(observations), dtype=torch.bool, device=observations.device)
    return network.over_sequences(observations, Sequences(no_starts, remembered))[1]


def explained_variance(values: Array, returns: Array) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant; NaN for constant returns."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(returns - values)) / variance
