"""Collecting rollouts with arrays on the host, by one or several ranks, each in its own environments.

Several ranks learn the bits of one process. Their statistics change only after a rollout, so nothing is sent while it
is collected. A process that trains alone collects in the same way if `PPOConfig.normalize_update` is "rollout". The
rollouts of all ranks are joined by environments, in the order of the ranks.
T steps, N environments of all ranks, n of this rank, D observation size.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.acting import ActRows
from ml_pipeline.models.rl.policies.compiled_networks import compile_if_possible
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.normalization import RewardScaler
from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout
from ml_pipeline.models.rl.ranks import Ranks, check_equal, digest_of
from ml_pipeline.models.rl.rollout.buffer import RolloutBuffer
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.estimates import Estimates, check_observations, check_rollout, estimate
from ml_pipeline.runtime.seeding import generator_state, random_generator, restore_generator

Array = np.ndarray

_BY_ROWS = {"observations": 1, "rewards": 1, "terminated": 1, "truncated": 1, "actions": 1, "outputs": 1, "memory": 0}
"""The parts of a rollout that have one entry per environment, and the axis of these entries."""


class HostCollector(Collector):
    """Collects arrays from environments of any kind; the policy takes arrays, whatever its device.

    Every rank draws the noise of all N environments at the start of a rollout, and uses its own rows. If statistics are
    updated after each step, `buffer` holds the inputs of an update. If they are updated after each rollout, it holds
    the rows of this rank, (T, n): observations before normalization, and rewards before scaling.

    One exchange ends such a rollout. It contains, for each of N environments, T + 1 observations (4 bytes per number, 1
    per pixel), T actions, rewards (8 bytes) and flags of ends (2 bytes), T outputs of a policy for images without
    memory (4 P + 4 bytes), the last observations of truncated episodes, the memory before the first step (4 S bytes),
    and a digest of the policy. For CartPole and 256 steps, this is 9 kB per environment.
    Every rank then repeats, step by step, the work that depends on all environments: the scaling of rewards, the count
    of episodes, and the statistics of observations. The statistics learn from the T * N observations for which actions
    were chosen, in the order (t, environment). The observations of a rollout are normalized by the statistics before
    it.
    """

    buffer: RolloutBuffer
    _data = "arrays"
    _at_hand: ActRows | None
    _counts_whole_steps = True
    """Whether episodes are counted in steps that all environments have taken."""

    def __init__(
        self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks | None = None
    ) -> None:
        """The arguments are those of `Collector`."""
        super().__init__(envs, policy, config, seed=seed, ranks=ranks)
        n_steps, size, dtype = config.n_steps, policy.observations.size, policy.observations.dtype
        self._whole = RolloutBuffer(n_steps, self.num_envs, size, dtype=dtype)  # for all N environments
        self._learns_by_step = self._ranks.size == 1 and config.normalize_update == "step"
        if self._learns_by_step:
            self.buffer = self._whole
            self._rewards = np.zeros(self.buffer.rewards.shape)  # before scaling
            self._times = np.zeros(n_steps)  # the end of each step, in seconds since training began
            self._at_hand = None
        else:
            self.buffer = own = OwnRollout(n_steps, envs.num_envs, size, dtype=dtype)
            self._rewards, self._times = own.rewards, own.times
            self._at_hand = ActRows(self._rows.start, self.num_envs)
            self._normalize_update = "rollout"
        self._restarts_of_all = 0
        policy.compile()
        self._reward_scaler = RewardScaler(self.num_envs, gamma=config.gamma) if config.normalize_rewards else None
        if self._reward_scaler is not None:
            compile_if_possible(self._reward_scaler.compile)
        self._memory = policy.new_rollout_memory(envs.num_envs)
        self._noise_generator = random_generator(seed, "actions")

    def collect(self, *, should_stop: Callable[[], bool]) -> bool:
        full = super().collect(should_stop=should_stop)
        if full and not self._learns_by_step:
            self._exchange()
        return full

    def estimates(self) -> Estimates:
        check_rollout(self._whole)
        return estimate(self._whole, self._policy, **self._estimation)

    @property
    def num_restarts(self) -> int:
        """For all ranks; if statistics are updated after each rollout, the number at the last exchange."""
        return super().num_restarts if self._learns_by_step else self._restarts_of_all

    def state_dict(self) -> dict[str, Any]:
        """The state for all N environments, on every rank. Ranks gather it, so all of them call this together."""
        own = super().state_dict()
        if self._ranks.rank:
            own["buffer"]["noise"] = None  # it is for all environments, and rank 0 sends it
        return joined_state(self._ranks.gather_values(own, "the state of the rollout"))

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Load the rows of this rank from a state for all environments; nothing is sent."""
        super().load_state_dict(rows_of_state(state, self._rows), environments_restored=environments_restored)

    def _own_state(self) -> dict[str, Any]:
        memory = None if self._memory is None else torch.from_numpy(self._memory.state.copy())
        state = {"memory": memory, "noise_generator": generator_state(self._noise_generator)}
        return state if self._learns_by_step else {"normalize_update": self._normalize_update, **state}

    def _load_own_state(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        restore_generator(self._noise_generator, state["noise_generator"])
        if environments_restored and self._memory is not None:
            self._memory.state = state["memory"].numpy()

    def _begin(self) -> None:
        self._reset_where_needed()
        noise = self._policy.distribution.draw_noise(self._noise_generator, (self._n_draws, self.num_envs))
        self.buffer.start(noise, None if self._memory is None else self._memory.state)

    def _step(self) -> None:
        buffer, policy = self.buffer, self._policy
        assert buffer.noise is not None
        t = buffer.position
        noise = buffer.noise[t // self._steps_per_noise]
        normalized, finish = buffer.observations[t], policy.observations.process_one
        if not self._learns_by_step:
            normalized, noise = policy.observations.normalize(normalized), noise[self._rows]
            finish = policy.observations.encode_one
        actions, outputs = policy.choose_and_value(normalized, noise, self._memory, self._at_hand)
        observations, rewards, terminated, truncated, infos = self._step_envs(policy.fit_actions(actions))
        if self._memory is not None:
            self._memory.forget(terminated | truncated)
        next_obs = self._learn_and_normalize(observations)
        if np.count_nonzero(truncated):  # takes 0.1 us, and the next line 0.8 us
            for i in (truncated & ~terminated).nonzero()[0].tolist():
                final_observation = finish(infos["final_obs"][i])[0]
                buffer.final_observations.append((t, self._rows.start + i, final_observation))
        self._rewards[t], self._times[t] = rewards, self._elapsed_s()
        buffer.store(actions, rewards, terminated, truncated, next_obs, outputs=outputs)

    def _count_steps(self, first: int, global_step: int) -> None:
        if self._learns_by_step:
            self._count(first, global_step=global_step, rewards=self._rewards, times=self._times)

    def _count(self, first: int, *, global_step: int, rewards: Array, times: Array) -> None:
        """Count episodes and scale rewards of all environments, from step `first` to the last filled step.

        global_step: before these steps. rewards: float64 (T, N), before scaling. times: float64 (T,), the end of each
        step, in seconds since training began.
        """
        whole = self._whole
        steps = slice(first, whole.position)
        given, done = rewards[steps], whole.terminated[steps] | whole.truncated[steps]
        if self._counts_whole_steps:
            self.episodes.count(given, done, global_step=global_step, times=times[steps])
        whole.rewards[steps] = given if self._reward_scaler is None else self._reward_scaler(given, done)

    def _learn_and_normalize(self, observations: Any, first: int = 0) -> Array:
        """If statistics are updated after each rollout, the observations are only encoded here."""
        encoded = self._policy.observations.encode(observations)
        return self._learned(encoded[first:], np.arange(first, len(encoded))) if first else self._learned(encoded)

    def _learned(self, encoded: Array, envs: Array | None = None) -> Array:
        """`_learn_and_normalize` for the encoded observations of these environments; None means all."""
        preprocessor = self._policy.observations
        if preprocessor.normalizer is None or not self._learns_by_step:
            return encoded
        normalized = preprocessor.normalizer.learn_and_normalize(encoded)
        means = preprocessor.normalizer.moments.mean
        if not math.isfinite(means.dot(means)):  # takes 0.2 us, and sum() 1.5 us
            # A NaN in the statistics makes the numbers of every environment NaN; find the first one now.
            check_observations(encoded, step=0 if self.buffer.full else self.buffer.position + 1, envs=envs)
        return normalized

    def _exchange(self) -> None:
        """Join the rollouts of all ranks, then count, scale and normalize as a collector does step by step, with the
        same sums. The times are those of rank 0."""
        own, whole, preprocessor = self.buffer, self._whole, self._policy.observations
        assert isinstance(own, OwnRollout)
        part = {
            "digest": digest_of(self._policy, self._noise_generator),
            "restarts": super().num_restarts,
            "times": own.times,
            "rollout": own.arrays(preprocessor.layout),
            "infos": self.episodes.infos,
        }
        began = time.perf_counter()
        parts = self._ranks.gather_values(part, "the rollouts of all")
        self.exchanging_s += time.perf_counter() - began
        check_equal(self._ranks, [part["digest"] for part in parts])
        self._restarts_of_all = sum(part["restarts"] for part in parts)
        observations, rewards = whole_arrays([part["rollout"] for part in parts], whole, preprocessor.layout)
        if self.episodes.infos is not None:
            self.episodes.infos = _of_all(parts)
        start = self.global_step - self.num_envs * whole.n_steps
        self._count(0, global_step=start, rewards=rewards, times=parts[0]["times"])
        whole.observations[:] = preprocessor.normalize(observations)
        whole.final_observations = [
            (t, i, preprocessor.normalize(final[None])[0]) for t, i, final in whole.final_observations
        ]
        if preprocessor.normalizer is not None:
            preprocessor.normalizer.update(observations[:-1].reshape(-1, observations.shape[-1]))


class OwnRollout(RolloutBuffer):
    """The rollout of one rank: encoded observations before normalization, and float64 rewards before scaling.

    Its noise is for all N environments. times: float64 (T,), the end of each step, in seconds since training began.
    """

    def __init__(self, n_steps: int, num_envs: int, observation_size: int, *, dtype: type = np.float32) -> None:
        super().__init__(n_steps, num_envs, observation_size, dtype=dtype, reward_type=np.float64)
        self.times = np.zeros(n_steps)

    def arrays(self, layout: ObservationLayout) -> dict[str, Any]:
        """The parts of a full rollout that the other ranks need. Images are sent as uint8."""
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
    """Write the parts of all ranks to `whole`, except observations and rewards, which are returned.

    These are not yet normalized and scaled: (T + 1, N, D) and float64 (T, N).
    """
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
    """The state of a collector of all N environments, from the states of the ranks; shared parts come from rank 0."""
    first, buffers = states[0], [state["buffer"] for state in states]
    episodes = first["episodes"]
    if "infos" in episodes:
        episodes = {**episodes, "infos": _of_all([state["episodes"] for state in states])}
    rows = {name: _joined([buffer[name] for buffer in buffers], axis) for name, axis in _BY_ROWS.items()}
    finals = _in_order([buffer["final_observations"] for buffer in buffers])
    return {
        **first,
        "episodes": episodes,
        "buffer": {**first["buffer"], **rows, "final_observations": finals},
        "memory": _joined([state["memory"] for state in states], 0),
    }


def rows_of_state(state: dict[str, Any], rows: slice) -> dict[str, Any]:
    """The part of a state of all N environments that belongs to the rank with these rows."""
    buffer = state["buffer"]
    names = ("observations",) if buffer["noise"] is None else _BY_ROWS  # between two rollouts, only observations count
    own = {name: _rows_of(buffer.get(name), rows, _BY_ROWS[name]) for name in names}
    finals = [each for each in buffer["final_observations"] if rows.start <= each[1] < rows.stop]
    return {
        **state,
        "buffer": {**buffer, **own, "final_observations": finals},
        "memory": _rows_of(state["memory"], rows, 0),
    }


def _image_columns(layout: ObservationLayout, size: int) -> Array | None:
    """The columns of images, bool (D,), if they are stored as float32 together with other columns; else None."""
    if not layout.images or layout.is_images_alone:
        return None
    columns = np.zeros(size, np.bool_)
    for image in layout.images:
        columns[image.columns] = True
    return columns


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """The arrays or tensors of all ranks, concatenated; None if there are none."""
    if parts[0] is None:
        return None
    return torch.cat(list(parts), dim=axis) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, axis=axis)


def _of_all(parts: Sequence[dict[str, Any]]) -> dict[tuple[int, int], Any]:
    """The infos of all ranks; a rank may also have those of others, from a checkpoint."""
    return {place: info for part in parts for place, info in part["infos"].items()}


def _rows_of(of_all: Any, rows: slice, axis: int) -> Any:
    if of_all is None:
        return None
    return of_all.narrow(axis, rows.start, rows.stop - rows.start).clone()


def _in_order(finals: Sequence[Sequence[tuple[int, int, Any]]]) -> list[tuple[int, int, Any]]:
    """Final observations of all ranks in the order of a single process: by step, then by environment."""
    return sorted((each for of_rank in finals for each in of_rank), key=lambda each: each[:2])
