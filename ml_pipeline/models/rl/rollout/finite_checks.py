"""Checks that find numbers that are not finite before they reach the weights. T steps, N environments."""

import math

import numpy as np

from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.device_buffer import DeviceBuffer
from ml_pipeline.models.rl.update.ppo_loss import LossInputs
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed

Array = np.ndarray


def check_observations(observations: Array, *, step: int, first: int = 0) -> None:
    """Raise TrainingFailed at the first number of float (N, D) that is not finite; for the message: the step, and which
    environment the first row is of."""
    if not np.isfinite(observations).all():
        env, number = np.argwhere(~np.isfinite(observations))[0]
        raise _failed(
            f"observation of environment {first + env}", step, observations[env, number], f", its number {number},"
        )


def check_rollout(buffer: RolloutBuffer) -> None:
    """Raise TrainingFailed at the first observation or reward of a full rollout that is not finite.

    One pass over each array: 20 µs for 256 steps of 8 environments with 4 numbers.
    """
    if buffer.observations.dtype != np.uint8 and not np.isfinite(buffer.observations).all():
        for step, observations in enumerate(buffer.observations):
            check_observations(observations, step=step)
    if not np.isfinite(buffer.rewards).all():
        t, env = np.argwhere(~np.isfinite(buffer.rewards))[0]
        raise _failed(f"reward of environment {env}", t + 1, buffer.rewards[t, env])


def check_device_rollout(buffer: DeviceBuffer) -> None:
    """The same for a full rollout on a device, in one transfer; the message does not say which number it was."""
    if not buffer.finite.all():
        t, env = (~buffer.finite).nonzero()[0].tolist()
        raise TrainingFailed(
            f"The observation or reward of environment {env} after step {t + 1} of the rollout is not finite; look "
            "there for a division by zero, a logarithm or missing data."
        )


def check_policy(inputs: LossInputs, num_envs: int) -> None:
    """Raise TrainingFailed if a value or log-probability of the policy is not finite although the rollout is."""
    for what, rows in {"log-probability": inputs.old_log_probs, "value": inputs.old_values}.items():
        if not math.isfinite(rows.sum().item()):
            first = int((~rows.isfinite()).nonzero()[0])
            t, env = divmod(first, num_envs)
            raise TrainingFailed(
                f"The policy's {what} in step {t + 1} of the rollout, for environment {env}, is {rows[first]}; "
                "its weights are damaged or huge: continue from an earlier checkpoint with a smaller --learning-rate."
            )


def _failed(what: str, step: int, value: float, part: str = "") -> TrainingFailed:
    return TrainingFailed(
        f"The {what} after step {step} of the rollout{part} is {value}; look there for a division by zero, a "
        "logarithm or missing data."
    )
