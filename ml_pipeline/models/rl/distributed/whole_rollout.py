"""From the rollouts of ranks to that of all, and back: by rows of environments, in the order of ranks.

T steps, N environments of all, n of one rank, D observation size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer

Array = np.ndarray

_BY_ROWS = {"observations": 1, "rewards": 1, "terminated": 1, "truncated": 1, "actions": 1, "outputs": 1, "memory": 0}
"""The parts of a rollout that hold rows of environments, and along which axis."""


class OwnRollout(RolloutBuffer):
    """The rollout of one rank, as the environments gave it: encoded observations that are not normalized, float64
    rewards. Its noise is that of all N environments. times: float64 (T,), when each step was done, in s of training.
    """

    def __init__(self, n_steps: int, num_envs: int, observation_size: int, *, dtype: type = np.float32) -> None:
        super().__init__(n_steps, num_envs, observation_size, dtype=dtype, reward_type=np.float64)
        self.times = np.zeros(n_steps)

    def arrays(self, layout: ObservationLayout) -> dict[str, Any]:
        """What the other ranks need of a full rollout. Images are sent as the uint8 that they were."""
        images = _image_columns(layout, self.observations.shape[-1])
        return {
            **{name: getattr(self, name) for name in _BY_ROWS},
            "observations": self.observations if images is None else self.observations[..., ~images],
            "images": None if images is None else self.observations[..., images].astype(np.uint8),
            "final_observations": self.final_observations,
        }

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "times": self.times[: state["position"]].tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        times = state["times"]
        self.times[: len(times)] = times


def whole_arrays(
    parts: Sequence[dict[str, Any]], whole: RolloutBuffer, layout: ObservationLayout
) -> tuple[Array, Array]:
    """Put the parts of all ranks into `whole`, where it is of the same kind; return observations and rewards, which are
    not yet normalized and scaled: (T + 1, N, D) and float64 (T, N)."""
    joined = {name: _joined([part[name] for part in parts], axis) for name, axis in _BY_ROWS.items()}
    whole.terminated, whole.truncated = joined["terminated"], joined["truncated"]
    whole.actions, whole.outputs, whole.memory = joined["actions"], joined["outputs"], joined["memory"]
    whole.final_observations = _in_order([part["final_observations"] for part in parts])
    whole.position = whole.n_steps
    observations, images = joined["observations"], _image_columns(layout, whole.observations.shape[-1])
    if images is not None:
        numbers, observations = observations, np.empty(whole.observations.shape, np.float32)
        observations[..., ~images] = numbers
        observations[..., images] = _joined([part["images"] for part in parts], 1)
    return observations, joined["rewards"]


def joined_state(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of a collector of all N environments, from those of the ranks; what concerns all is rank 0's."""
    first, buffers = states[0], [state["buffer"] for state in states]
    rows = {name: _joined([buffer[name] for buffer in buffers], axis) for name, axis in _BY_ROWS.items()}
    finals = _in_order([buffer["final_observations"] for buffer in buffers])
    return {
        **first,
        "buffer": {**first["buffer"], **rows, "final_observations": finals},
        "memory": _joined([state["memory"] for state in states], 0),
    }


def rows_of_state(state: dict[str, Any], rows: slice) -> dict[str, Any]:
    """The part of a state of all N environments that the rank with these rows continues with."""
    buffer = state["buffer"]
    names = ("observations",) if buffer["noise"] is None else _BY_ROWS  # all that counts between two rollouts
    own = {name: _rows_of(buffer.get(name), rows, _BY_ROWS[name]) for name in names}
    finals = [each for each in buffer["final_observations"] if rows.start <= each[1] < rows.stop]
    return {
        **state,
        "buffer": {**buffer, **own, "final_observations": finals},
        "memory": _rows_of(state["memory"], rows, 0),
    }


def _image_columns(layout: ObservationLayout, size: int) -> Array | None:
    """Which of all columns are of images, bool (D,), where these are stored as float32 beside others; else None."""
    if not layout.images or layout.is_images_alone:
        return None
    columns = np.zeros(size, np.bool_)
    for image in layout.images:
        columns[image.columns] = True
    return columns


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """Arrays, tensors or None of all ranks, side by side."""
    if parts[0] is None:
        return None
    return torch.cat(list(parts), dim=axis) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, axis=axis)


def _rows_of(of_all: Any, rows: slice, axis: int) -> Any:
    if of_all is None:
        return None
    return of_all.narrow(axis, rows.start, rows.stop - rows.start).clone()


def _in_order(finals: Sequence[Sequence[tuple[int, int, Any]]]) -> list[tuple[int, int, Any]]:
    """Final observations of all ranks in the order in which one process meets them: by step, then by environment."""
    return sorted((each for of_rank in finals for each in of_rank), key=lambda each: each[:2])
