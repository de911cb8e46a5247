"""What no policy can learn from, found and named before it reaches the weights. T steps, N environments."""

import math

import numpy as np

from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.device_buffer import DeviceBuffer
from ml_pipeline.models.rl.update.ppo_loss import LossInputs
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed

Array = np.ndarray


def check_observations(observations: Array, *, step: int) -> None:
    """Raise TrainingFailed at the first number that is not finite in float (N, D), seen after `step` of the rollout."""
    if not np.isfinite(observations).all():
        env, number = np.argwhere(~np.isfinite(observations))[0]
        raise _failed(f"observation of environment {env}", step, observations[env, number], f", its number {number},")


def check_rollout(buffer: RolloutBuffer) -> None:
    """Raise TrainingFailed at the first observation or reward of a full rollout that is not finite.

    One pass over each array: 20 µs for 256 steps of 8 environments with 4 numbers.
    """
    if not np.isfinite(buffer.observations).all():
        for step, observations in enumerate(buffer.observations):
            check_observations(observations, step=step)
    if not np.isfinite(buffer.rewards).all():
        t, env = np.argwhere(~np.isfinite(buffer.rewards))[0]
        raise _failed(f"reward of environment {env}", t + 1, buffer.rewards[t, env])


def check_device_rollout(buffer: DeviceBuffer) -> None:
    """The same of a full rollout on a device, which is asked once. Which number of the observation is not told."""
    if not buffer.finite.all():
        t, env = (~buffer.finite).nonzero()[0].tolist()
        raise TrainingFailed(
            f"The observation or reward of environment {env} after step {t + 1} of the rollout is not finite; look "
            "there for a division by zero, a logarithm or missing data."
        )


def check_policy(inputs: LossInputs, num_envs: int) -> None:
    """Raise TrainingFailed where the policy itself gave something that is not finite, in a rollout that was."""
    for what, rows in {"log-probability": inputs.old_log_probs, "value": inputs.old_values}.items():
        if not math.isfinite(rows.sum().item()):
            first = int((~rows.isfinite()).nonzero()[0])
            t, env = divmod(first, num_envs)
            raise TrainingFailed(
                f"The policy's {what} in step {t + 1} of the rollout, for environment {env}, is {rows[first]}; "
                "its weights are damaged or huge: go back to an earlier checkpoint, with a smaller --learning-rate."
            )


def _failed(what: str, step: int, value: float, part: str = "") -> TrainingFailed:
    return TrainingFailed(
        f"The {what} after step {step} of the rollout{part} is {value}; look there for a division by zero, a "
        "logarithm or missing data."
    )
