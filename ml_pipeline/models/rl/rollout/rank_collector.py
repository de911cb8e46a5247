"""Collecting a rollout by several ranks, each in its own environments, with the bits of one process.

T steps, N environments of all ranks, n of this rank, D observation size. Statistics change after a rollout only, so
that nothing needs to be sent while it is collected. A process that trains alone collects in the same way, as a group of
one, where `PPOConfig.normalize_update` is "rollout". The rollouts of ranks become that of all by rows of environments,
in the order of ranks.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.policies.acting import ActRows
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout
from ml_pipeline.models.rl.ranks import Ranks, check_equal, digest_of, pack, rows_of, states_put, unpack
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.collector import Collector, resized
from ml_pipeline.models.rl.rollout.host_collector import ArrayCollector

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


class RankCollector(ArrayCollector):
    """Steps the environments of one rank; after the last step of a rollout every rank has the rollout of all.

    Every rank draws the noise of all N environments and uses its own rows. `buffer` holds the rank's own rows, (T, n),
    as the environments gave them: observations before normalization, rewards before scaling.

    One exchange ends a rollout. It carries, for each of N environments, T + 1 observations (4 bytes a number, 1 a point
    of an image), T actions, rewards (8 bytes) and ends (2 bytes), T outputs of a policy that sees images without memory
    (4 P + 4 bytes), the last observations of truncated episodes, the memory before the first step (4 S bytes), and a
    digest of the policy. CartPole's rollout of 256 steps is 9 kB an environment. Every rank then replays what depends
    on all environments, step by step: scaling of rewards, episodes, and statistics of observations, which learn the
    T * N observations that were acted on, in the order (t, environment). A rollout's observations are normalized by the
    statistics before it.
    """

    _normalize_update = "rollout"

    def __init__(self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks) -> None:
        """envs: this rank's own. Raises UserError if the policy was made for other spaces, or if the environments are
        not divided among the ranks as `rows_of` does."""
        num_envs = _num_envs_of_all(ranks, envs.num_envs)
        super().__init__(envs, policy, config, seed=seed, num_envs=num_envs)
        self._ranks = ranks
        self._rows = rows_of(ranks.rank, ranks.size, num_envs)
        self._first_env = self._rows.start
        self._at_hand = ActRows(self._rows.start, num_envs)
        size, dtype = policy.observations.size, policy.observations.dtype
        self.buffer = OwnRollout(config.n_steps, envs.num_envs, size, dtype=dtype)
        self._num_restarts = 0

    def collect(self, *, should_stop: Callable[[], bool]) -> bool:
        if not super().collect(should_stop=should_stop):
            return False
        began = time.perf_counter()
        parts = self._gather(self._own_part(), "the rollouts of all")
        self.exchanging_s += time.perf_counter() - began
        check_equal(self._ranks, [part["digest"] for part in parts])
        self._num_restarts = sum(part["restarts"] for part in parts)
        rollouts, layout = [part["rollout"] for part in parts], self._policy.observations.layout
        self._replay(*whole_arrays(rollouts, self._whole, layout), parts[0]["times"])
        return True

    @property
    def num_restarts(self) -> int:
        """Of the workers of all ranks, as far as the last exchange told."""
        return self._num_restarts

    def state_dict(self) -> dict[str, Any]:
        """The state of all N environments, on every rank: ranks gather it, so that all call this together."""
        own = super().state_dict()
        if self._ranks.rank:
            own["buffer"]["noise"] = None  # that of all environments, which rank 0 has as well
        return joined_state(self._gather(own, "the state of the rollout"))

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Take this rank's rows out of a state of all; nothing is sent."""
        super().load_state_dict(rows_of_state(state, self._rows), environments_restored=environments_restored)

    def go_on_from(self, earlier: Collector, states: Sequence[Any] | None) -> None:
        """The same as in one process; states: of the environments of all ranks. All ranks call it together."""
        state = resized(earlier.state_dict(), self.num_envs)
        goes_on = states is not None and earlier.is_reset
        observations, rows = None, self._rows
        if states is not None and goes_on:
            own = states[rows]
            observations = states_put(
                self._ranks,
                lambda: self._envs.continue_from(own, seed=self._seed + rows.start),
                first_env=rows.start,
            )
        self.load_state_dict(state, environments_restored=goes_on)
        if observations is not None:
            self._store_first(observations, max(0, earlier.num_envs - rows.start))

    def _own_state(self) -> dict[str, Any]:
        return {"normalize_update": self._normalize_update, **super()._own_state()}

    def _step(self) -> None:
        buffer, policy = self.buffer, self._policy
        assert buffer.noise is not None
        t = buffer.position
        normalized = policy.observations.normalize(buffer.observations[t])
        noise = buffer.noise[t, self._rows]
        actions, outputs = policy.choose_and_value(normalized, noise, self._memory, self._at_hand)
        observations, rewards, terminated, truncated, infos = self._step_envs(policy.fit_actions(actions))
        if self._memory is not None:
            self._memory.forget(terminated | truncated)
        for i in (truncated & ~terminated).nonzero()[0].tolist():
            final_observation = policy.observations.encode_one(infos["final_obs"][i])[0]
            buffer.final_observations.append((t, self._rows.start + i, final_observation))
        buffer.times[t] = self._elapsed_s()
        encoded = self._learn_and_normalize(observations)
        buffer.store(actions, rewards, terminated, truncated, encoded, outputs=outputs)

    def _step_envs(self, actions: Any) -> Any:
        try:
            return super()._step_envs(actions)
        except VectorEnvError as error:
            error.number_among(self._rows.start, self.num_envs)
            raise

    def _reset_where_needed(self) -> None:
        try:
            super()._reset_where_needed()
        except VectorEnvError as error:
            error.number_among(self._rows.start, self.num_envs)
            raise

    def _learn_and_normalize(self, observations: Any, first: int = 0) -> Array:
        """Neither is done here: encoded observations, as they are."""
        encoded = self._policy.observations.encode(observations)
        return encoded[first:] if first else encoded

    def _own_part(self) -> dict[str, Any]:
        return {
            "digest": digest_of(self._policy, self._noise_generator),
            "restarts": super().num_restarts,
            "times": self.buffer.times,
            "rollout": self.buffer.arrays(self._policy.observations.layout),
        }

    def _gather(self, part: dict[str, Any], what: str) -> list[dict[str, Any]]:
        if self._ranks.size == 1:
            return [part]
        return [unpack(each) for each in self._ranks.gather(pack(part), what)]

    def _replay(self, observations: Array, rewards: Array, times: Array) -> None:
        """Do for all environments what a collector of one process does step by step, with the same sums.

        observations: (T + 1, N, D), as encoded. rewards: float64 (T, N). times: float64 (T,), rank 0's, in s.
        """
        whole, preprocessor = self._whole, self._policy.observations
        start = self.global_step - self.num_envs * whole.n_steps
        self._count(0, global_step=start, rewards=rewards, times=times)
        whole.observations[:] = preprocessor.normalize(observations)
        whole.final_observations = [
            (t, i, preprocessor.normalize(final[None])[0]) for t, i, final in whole.final_observations
        ]
        if preprocessor.normalizer is not None:
            preprocessor.normalizer.update(observations[:-1].reshape(-1, observations.shape[-1]))


def _num_envs_of_all(ranks: Ranks, own: int) -> int:
    """How many environments all ranks have together. Raises UserError where they are not divided evenly."""
    numbers = [int(number) for number in ranks.gather(str(own).encode(), "the numbers of environments")]
    total = sum(numbers)
    divided = [rows_of(rank, ranks.size, total) for rank in range(ranks.size)]
    if numbers != [rows.stop - rows.start for rows in divided]:
        raise UserError(
            f"{total} environments are not divided among {ranks.size} ranks as evenly as can be, the first with one "
            f"more: they have {', '.join(map(str, numbers))}; hand each rank envs[rows_of(rank, size, n_envs)]."
        )
    return total
