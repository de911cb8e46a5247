"""From a full rollout to the inputs of an update, with checks for numbers that are not finite.

Images are evaluated in parts by several threads; the number of threads does not change the bits. T steps, N
environments, B = T * N, D observation size, P parameters of the distribution, S state size.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import in_threads
from ml_pipeline.models.rl.rollout.buffer import DeviceBuffer, RolloutBuffer
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences, TrainingFailed, with_shorter_sequences


class Estimates(NamedTuple):
    """The rollout as one batch of B samples, and the explained variance of its values."""

    batch: Minibatch
    explained_variance: float


@torch.no_grad()
def estimate(
    buffer: RolloutBuffer, policy: Policy, *, gamma: float, gae_lambda: float, sequence_length: int | None = None
) -> Estimates:
    """Values, log-probabilities, advantages and returns of a full rollout.

    Each network runs once over the rollout, or only over the last observations if acting stored its other outputs.
    sequence_length: length of the sequences in the batch; None means T.
    """
    device = policy.device
    done = buffer.terminated | buffer.truncated
    memory = None if buffer.memory is None else torch.from_numpy(buffer.memory).to(device)
    observations, actions, ended = (
        torch.from_numpy(array).to(device) for array in (buffer.observations, buffer.actions, done)
    )
    outputs = None if buffer.outputs is None else torch.from_numpy(buffer.outputs).to(device)
    evaluation = evaluate_rollout(policy, observations, actions, ended, memory, outputs=outputs)
    value_rows = evaluation.values.cpu().numpy()
    values, next_values = value_rows[:-1], value_rows[1:].copy()
    if buffer.final_observations:
        steps, envs, finals = zip(*buffer.final_observations, strict=True)
        rows = torch.from_numpy(np.stack(finals)).to(device)
        remembered = None if evaluation.states is None else evaluation.states[list(steps), list(envs)]
        next_values[list(steps), list(envs)] = values_of(policy, rows, remembered).cpu().numpy()
    advantages, returns = compute_gae(
        buffer.rewards, values, next_values, buffer.terminated, done, gamma=gamma, gae_lambda=gae_lambda
    )
    on_device = (torch.from_numpy(array).to(device) for array in (advantages, returns, values))
    batch = evaluation.batch(observations, actions, *on_device, sequence_length=sequence_length)
    return Estimates(batch, explained_variance(values, returns))


@torch.no_grad()
def estimate_on_device(
    buffer: DeviceBuffer, policy: Policy, *, gamma: float, gae_lambda: float, sequence_length: int | None = None
) -> Estimates:
    """`estimate` for a rollout on a device, computed there.

    The final observation of every step is evaluated, because the host does not know which steps ended an episode.
    """
    done = buffer.terminated | buffer.truncated
    evaluation = evaluate_rollout(policy, buffer.observations, buffer.actions, done, buffer.memory)
    values = evaluation.values[:-1]
    remembered = None if evaluation.states is None else evaluation.states[:-1].flatten(0, 1)
    final_values = values_of(policy, buffer.final_observations.flatten(0, 1), remembered).view_as(values)
    next_values = torch.where(done, final_values, evaluation.values[1:])
    advantages, returns = compute_gae(
        buffer.scaled_rewards, values, next_values, buffer.terminated, done, gamma=gamma, gae_lambda=gae_lambda
    )
    # The batch holds views of the buffer, which the next rollout overwrites only after the update.
    batch = evaluation.batch(
        buffer.observations, buffer.actions, advantages, returns, values, sequence_length=sequence_length
    )
    return Estimates(batch, explained_variance(values, returns))


class RolloutEvaluation(NamedTuple):
    """The outputs of the networks for a rollout.

    log_probs: (B,), of the actions. values: (T + 1, N), in units of rewards. For a policy with memory, also sequences,
    and states: (T + 1, N, S), after each step.
    """

    log_probs: Tensor
    values: Tensor
    sequences: Sequences | None
    states: Tensor | None

    def batch(
        self,
        observations: Tensor,
        actions: Tensor,
        advantages: Tensor,
        returns: Tensor,
        values: Tensor,
        *,
        sequence_length: int | None,
    ) -> Minibatch:
        """The rollout as one batch of B samples.

        observations: (T + 1, N, D). actions: (T, N, ...). advantages, returns, values: (T, N).
        """
        inputs = LossInputs(self.log_probs, advantages.flatten(), returns.flatten(), values.flatten())
        batch = Minibatch(observations[:-1].flatten(0, 1), actions.flatten(0, 1), inputs, self.sequences)
        if self.states is None or sequence_length is None:
            return batch
        return with_shorter_sequences(batch, self.states, sequence_length)


def evaluate_rollout(
    policy: Policy,
    observations: Tensor,
    actions: Tensor,
    done: Tensor,
    memory: Tensor | None,
    *,
    outputs: Tensor | None = None,
) -> RolloutEvaluation:
    """Run each network once over the rollout.

    observations: (T + 1, N, D). actions: (T, N, ...). done: bool (T, N). memory: (N, S), before the first step.
    outputs: (T, N, P + 1), parameters and values of all steps, if they are known.
    """
    n_steps, num_envs = done.shape
    rows, n_samples = observations.flatten(0, 1), n_steps * num_envs  # ((T + 1) * N, D)
    network, sequences, states = policy.network, None, None
    if isinstance(network, ActorCritic):
        actor, critic = policy.actor_and_critic
        parameters, values = actor(rows[:n_samples]), critic(rows)
    elif outputs is not None:
        _, last_values = outputs_of(network, observations[-1])
        parameters, values = outputs[..., :-1].flatten(0, 1), torch.cat([outputs[..., -1].flatten(), last_values])
    elif memory is None:
        parameters, values = outputs_of(network, rows)
    else:
        # An episode starts in the step after one has ended. `memory` is already reset for the first step.
        starts = torch.cat([torch.zeros_like(done[:1]), done])
        sequences = Sequences(starts, memory)
        if policy.recurrent is not None:
            parameters, values, states = policy.recurrent.over_sequences(observations, sequences)
        else:
            parameters, values, states = outputs_over_sequences(network, observations, sequences)
        sequences = Sequences(starts[:n_steps], memory)
    log_probs, _ = network.distribution.log_probs_and_entropies(parameters[:n_samples], actions.flatten(0, 1))
    values = policy.values.to_rewards(values).view(n_steps + 1, num_envs)
    return RolloutEvaluation(log_probs, values, sequences, states)


def values_of(policy: Policy, observations: Tensor, remembered: Tensor | None) -> Tensor:
    """Values, (K,), of K observations. remembered: float32 (K, S), the memory states before these observations."""
    return policy.values.to_rewards(_values_of(policy.network, observations, remembered))


def with_normalized_values(batch: Minibatch, policy: Policy) -> Minibatch:
    """Update the policy's value normalization with the returns, and convert returns and old values to its units.

    The batch is returned unchanged if the policy does not normalize values.
    """
    if policy.values.normalizer is None:
        return batch
    policy.values.learn(batch.inputs.returns.cpu().numpy())
    returns, old_values = map(policy.values.from_rewards, (batch.inputs.returns, batch.inputs.old_values))
    return batch._replace(inputs=batch.inputs._replace(returns=returns, old_values=old_values))


class ShapeError(UserError):
    """Arrays that must have the same shape have different ones."""


def compute_gae(
    rewards: Any,
    values: Any,
    next_values: Any,
    terminated: Any,
    done: Any,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Any, Any]:
    """Generalized advantage estimates of one rollout.

    rewards, values, next_values: float32 (T, N); next_values[t] is V(final_obs) if an episode was truncated in step t.
    terminated: bool (T, N); no bootstrap after these steps. done: bool (T, N), terminated or truncated; the sum ends
    there. Returns (advantages, returns), each float32 (T, N).
    Raises ShapeError if shapes differ.
    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    for name, array in {
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "done": done,
    }.items():
        if array.shape != rewards.shape:
            raise ShapeError(f"{name} must have the shape of rewards, {rewards.shape}, but has {array.shape}.")
    advantages = rewards + gamma * next_values * ~terminated - values  # one-step advantages so far
    decay = ~done * np.float32(gamma * gae_lambda)
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages, advantages + values


def explained_variance(values: Any, returns: Any) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 is no better than a constant.

    NaN if the returns are constant. values, returns: both arrays or both tensors.
    """
    variance = float(returns.var())
    return float("nan") if variance == 0.0 else 1.0 - float((returns - values).var()) / variance


_ROWS = 256
_ENVS = 8
"""Rows per part without memory, and environments per part with memory, for images and for a user's network."""


def outputs_of(network: GeneralActorCritic, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters (B, P) and values (B,) for observations (B, D), without gradients."""
    if not _shares(network, rows):
        return network(rows)
    parts = _evaluated(list(rows.split(_ROWS)), network)
    parameters, values = (torch.cat(column) for column in zip(*parts, strict=True))
    return parameters, values


def outputs_over_sequences(
    network: GeneralActorCritic, observations: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters (T * N, P), values (T * N,) and states (T, N, S) for observations (T, N, D), without gradients."""
    if not _shares(network, observations):
        return network.over_sequences(observations.flatten(0, 1), sequences)

    def run(part: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        own, starts, state = part
        parameters, values, states = network.over_sequences(own.flatten(0, 1), Sequences(starts, state))
        return [parameters.unflatten(0, starts.shape), values.view(starts.shape), states]

    columns = (observations.split(_ENVS, 1), sequences.starts.split(_ENVS, 1), sequences.state.split(_ENVS))
    parts = _evaluated(list(zip(*columns, strict=True)), run)
    parameters, values, states = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    return parameters.flatten(0, 1), values.flatten(), states


def check_observations(observations: np.ndarray, *, step: int, envs: np.ndarray | None = None) -> None:
    """Raise TrainingFailed if a number of observations, float (N, D), is not finite.

    step, envs: for the message, the step and the indices of the environments; None means 0 to N - 1.
    """
    if not np.isfinite(observations).all():
        env, number = np.argwhere(~np.isfinite(observations))[0]
        raise _failed(
            f"observation of environment {env if envs is None else envs[env]}",
            step,
            observations[env, number],
            f", at index {number},",
        )


def check_rollout(buffer: RolloutBuffer) -> None:
    """Raise TrainingFailed if an observation or a reward of a full rollout is not finite.

    256 steps of 8 environments with 4 numbers take 20 µs.
    """
    if buffer.observations.dtype != np.uint8 and not np.isfinite(buffer.observations).all():
        for step, observations in enumerate(buffer.observations):
            check_observations(observations, step=step)
    if not np.isfinite(buffer.rewards).all():
        t, env = np.argwhere(~np.isfinite(buffer.rewards))[0]
        raise _failed(f"reward of environment {env}", t + 1, buffer.rewards[t, env])


def check_device_rollout(buffer: DeviceBuffer) -> None:
    """`check_rollout` for a rollout on a device, in one transfer; the message does not name the number."""
    if not buffer.finite.all():
        t, env = (~buffer.finite).nonzero()[0].tolist()
        raise TrainingFailed(
            f"The observation or reward of environment {env} after step {t + 1} of the rollout is not finite; check "
            "the environment for a division by zero, a logarithm or missing data."
        )


def check_policy(inputs: LossInputs, policy: Policy, num_envs: int) -> None:
    """Raise TrainingFailed if a value or a log-probability of the policy is not finite."""
    user = policy.user_network
    cause = "" if user is None else f", or the network {user.name} cannot take these observations"
    for what, rows in {"log-probability": inputs.old_log_probs, "value": inputs.old_values}.items():
        if not math.isfinite(rows.sum().item()):
            first = int((~rows.isfinite()).nonzero()[0])
            t, env = divmod(first, num_envs)
            raise TrainingFailed(
                f"The policy's {what} in step {t + 1} of the rollout, for environment {env}, is {rows[first]}, so its "
                f"weights are damaged or huge{cause}; continue from an earlier checkpoint with a smaller "
                "--learning-rate."
            )


def _values_of(network: ActorCritic | GeneralActorCritic, observations: Tensor, remembered: Tensor | None) -> Tensor:
    if isinstance(network, ActorCritic):
        return network.critic(observations).squeeze(1)
    if remembered is None:
        return outputs_of(network, observations)[1]
    no_starts = torch.zeros(1, len(observations), dtype=torch.bool, device=observations.device)
    return network.over_sequences(observations, Sequences(no_starts, remembered))[1]


def _shares(network: GeneralActorCritic, observations: Tensor) -> bool:
    return (network.sees_images or network.user_network is not None) and observations.device.type == "cpu"


def _evaluated(parts: list[Any], run: Any) -> list[Any]:
    found = [None] * len(parts)

    def evaluate(i: int) -> None:
        with torch.no_grad():  # holds per thread
            found[i] = run(parts[i])

    in_threads(evaluate, len(parts))
    return found


def _failed(what: str, step: int, value: float, part: str = "") -> TrainingFailed:
    return TrainingFailed(
        f"The {what} after step {step} of the rollout{part} is {value}; check the environment for a division by zero, "
        "a logarithm or missing data."
    )
