"""Collecting rollouts: the base of the collectors for arrays and for tensors, and the count of episodes."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import NormalizeUpdate, PPOConfig
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.ranks import OneRank, Ranks, num_envs_of_all, rows_of, states_put
from ml_pipeline.models.rl.rollout.estimates import Estimates
from ml_pipeline.monitoring.sinks import EpisodeRecord
from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain

Array = np.ndarray
WINDOW = 100


class EpisodeTracker:
    """Adds up the rewards of each environment, and makes a record of each episode that ends."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.finished: list[EpisodeRecord] = []
        self.infos: dict[tuple[int, int], Any] | None = None
        """Last infos as plain data, by global step and environment; None if no callback needs them."""

    def count(self, rewards: Array, done: Array, *, global_step: int, times: Array) -> None:
        """Count T steps of all N environments.

        rewards: float (T, N). done: bool (T, N). global_step: before the first of these steps. times: float (T,), the
        end of each step, in seconds since training began.
        """
        ends = np.any(done, axis=1).tolist()
        n_counted = 0  # in `_lengths`
        for t, (of_step, some_ended) in enumerate(zip(rewards, ends, strict=True)):
            self._returns += of_step
            if some_ended:
                self._lengths += t + 1 - n_counted
                n_counted = t + 1
                self._record(done[t], global_step=global_step + n_counted * done.shape[1], time_s=float(times[t]))
        self._lengths += len(rewards) - n_counted

    def count_step(self, rewards: Array, done: Array, counted: Array, *, global_step: int, time_s: float) -> None:
        """Count one step of the environments in `counted`, bool (N,), at once; global_step, time_s: after it.

        rewards: float (N,). done: bool (N,), False outside `counted`.
        """
        self._returns += np.where(counted, rewards, 0.0)
        self._lengths += counted
        if done.any():
            self._record(done, global_step=global_step, time_s=time_s)

    def _record(self, done: Array, *, global_step: int, time_s: float) -> None:
        """Record the episodes that ended in a step; done: bool (N,)."""
        for i in done.nonzero()[0].tolist():
            record = EpisodeRecord(
                episode_return=float(self._returns[i]),
                length=int(self._lengths[i]),
                env_index=i,
                global_step=global_step,
                time_s=time_s,
            )
            self.finished.append(record)
            self._recent.append(record.episode_return)
            self._returns[i] = 0.0
            self._lengths[i] = 0

    def keep_infos(self, wanted: bool) -> None:
        """Whether `take_infos` has the episodes that end from now on."""
        self.infos = (self.infos or {}) if wanted else None

    def take_infos(self) -> list[EpisodeRecord]:
        """The finished episodes whose infos were kept, with these infos, which are then dropped."""
        infos, self.infos = self.infos or {}, None if self.infos is None else {}
        ended = [(record, infos.get((record.global_step, record.env_index))) for record in self.finished]
        return [record._replace(info=from_plain(info)) for record, info in ended if info is not None]

    def take_finished(self) -> list[EpisodeRecord]:
        """The episodes that ended since the last call; `finished` is empty afterwards."""
        finished, self.finished = self.finished, []
        return finished

    def recent_mean_return(self) -> float:
        """Mean return of the last 100 episodes; NaN before the first one has ended."""
        return float(np.mean(self._recent)) if self._recent else float("nan")

    def state_dict(self) -> dict[str, Any]:
        return {
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "recent": list(self._recent),
            "finished": [tuple(record[:-1]) for record in self.finished],  # without the info
            **({} if self.infos is None else {"infos": dict(self.infos)}),
        }

    def load_state_dict(self, state: dict[str, Any], *, running: bool) -> None:
        """Load `state`. Unfinished episodes are dropped unless their environments continue (`running`)."""
        if running:
            self._returns = np.asarray(state["returns"], dtype=np.float64)
            self._lengths = np.asarray(state["lengths"], dtype=np.int64)
        self._recent = deque(state["recent"], maxlen=WINDOW)
        self.finished = [EpisodeRecord(*record) for record in state["finished"]]
        self.infos = state.get("infos")


class Collector(ABC):
    """Steps environments with a policy until a buffer is full: act, step, normalize, store.

    `state_dict` holds all that is needed to continue after an interruption. Subclasses set the attributes below, and
    implement beginning a rollout, taking a step, and estimating.
    """

    buffer: Any
    _data: str
    """The form of observations: "arrays", or "tensors on" a device."""
    _normalize_update: NormalizeUpdate = "step"
    """When the statistics of observations are updated. A state saved with one value cannot be loaded with another."""
    _autoreset_mode = "SAME_STEP or DISABLED"
    _reward_scaler: Any
    """None if rewards are not scaled."""

    def __init__(
        self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks | None = None
    ) -> None:
        """envs: the environments of this rank. ranks: None if this process trains alone.

        Raises UserError if the policy was made for other spaces, or if the environments are divided among the ranks in
        another way than by `rows_of`.
        """
        self._ranks = ranks = ranks or OneRank()
        self.num_envs = num_envs_of_all(ranks, envs.num_envs)
        self._rows = rows_of(ranks.rank, ranks.size, self.num_envs)  # which of all environments `envs` are
        policy.check_spaces(envs.single_observation_space, envs.single_action_space)
        self._envs: Any = envs
        self.episodes = EpisodeTracker(self.num_envs)
        self.global_step = 0
        self.stepping_s = 0.0  # total time in the environments' step()
        self.exchanging_s = 0.0  # total time of exchanges with other ranks
        self._policy = policy
        self._estimation = {name: getattr(config, name) for name in ("gamma", "gae_lambda", "sequence_length")}
        self._noise_settings = {"n_steps": config.n_steps, "sde_sample_freq": config.sde_sample_freq}
        self._steps_per_noise = config.steps_per_noise
        self._n_draws = -(-config.n_steps // self._steps_per_noise)  # of noise, in a rollout
        self._seed = seed
        self._reset_done = False
        self._elapsed_before_s = 0.0
        self._started_at = time.perf_counter()

    def collect(self, *, should_stop: Callable[[], bool]) -> bool:
        """Fill the buffer; return whether it is full. `should_stop` is called before each step.

        After a stop, the next call continues the rollout.
        """
        with self._policy.acting_threads():
            if self.buffer.full:
                self._begin()
            first, global_step = self.buffer.position, self.global_step
            try:
                while not self.buffer.full:
                    if should_stop():
                        return False
                    self._step()
                return True
            finally:
                self._count_steps(first, global_step)

    @property
    def rollout_start_step(self) -> int:
        """`global_step` at the start of the current rollout; between two rollouts, at the start of the next one."""
        return self.global_step - (0 if self.buffer.full else self.buffer.position * self.num_envs)

    @abstractmethod
    def estimates(self) -> Estimates:
        """The inputs of an update, from a full buffer. Raises TrainingFailed if a number in it is not finite."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "data": self._data,
            "noise_settings": self._noise_settings,
            "buffer": self.buffer.state_dict(),
            "episodes": self.episodes.state_dict(),
            "global_step": self.global_step,
            "reward_scaler": None if self._reward_scaler is None else self._reward_scaler.state_dict(),
            "elapsed_s": self._elapsed_s(),
            "reset_done": self._reset_done,
            **self._own_state(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UserError if `state` was saved by a collector with other settings."""
        noise = state["buffer"].get("noise")
        drawn_by = self._noise_settings  # they may change between two rollouts
        if noise is not None:
            earlier_version = {"n_steps": len(noise), "sde_sample_freq": -1}
            drawn_by = state.get("noise_settings", earlier_version)
        here = {
            "observations as": (state["data"], self._data),
            "num_envs": (len(state["episodes"]["returns"]), self.num_envs),
            "normalize_update": (state.get("normalize_update", "step"), self._normalize_update),
            "autoreset_mode": (state.get("autoreset_mode", Collector._autoreset_mode), self._autoreset_mode),
            **{name: (drawn_by[name], ours) for name, ours in self._noise_settings.items()},
            "normalize_rewards": (state["reward_scaler"] is not None, self._reward_scaler is not None),
        }
        for what, (saved, ours) in here.items():
            if saved != ours:
                raise UserError(
                    f"The checkpoint was made with {what} {saved}, but here it is {ours}; continue with {saved}, or "
                    "start a new training."
                )

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Continue from `state`; environments that could not be restored begin new episodes."""
        self.episodes.load_state_dict(state["episodes"], running=environments_restored)
        self.global_step = state["global_step"]
        if self._reward_scaler is not None:
            self._reward_scaler.load_state_dict(state["reward_scaler"])
        self._elapsed_before_s = state["elapsed_s"]
        self._reset_done = environments_restored and state["reset_done"]
        self._load_own_state(state, environments_restored=environments_restored)
        if environments_restored:
            self.buffer.load_state_dict(state["buffer"])

    def go_on_from(self, earlier: "Collector", states: Sequence[Any] | None) -> None:
        """Between two rollouts, continue from another collector, which may have more or fewer environments.

        states: of the environments of `earlier`, on all ranks. Environment i continues from the i-th state; additional
        environments begin an episode seeded seed + i. With None, all environments begin new episodes in the next
        rollout. Unfinished episodes of environments that do not continue are dropped. All ranks call this together.
        Raises StateNotAvailable if these environments cannot be put into the states.
        """
        state, rows = resized(earlier.state_dict(), self.num_envs), self._rows
        observations = None
        if states is not None and earlier.is_reset:
            own = states[rows]
            observations = states_put(
                self._ranks,
                lambda: self._envs.continue_from(own, seed=self._seed + rows.start),
                first_env=rows.start,
            )
        self.load_state_dict(state, environments_restored=states is not None and earlier.is_reset)
        if observations is not None:
            self._store_first(observations, max(0, earlier.num_envs - rows.start))

    @property
    def num_restarts(self) -> int:
        """The number of workers that were replaced since the environments were made."""
        return getattr(self._envs, "num_restarts", 0)

    @property
    def is_reset(self) -> bool:
        """Whether the environments were reset, so that they have states to continue from."""
        return self._reset_done

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """The part of `state_dict` that belongs to the subclass."""

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        """Load the part that `_own_state` returned."""

    @abstractmethod
    def _begin(self) -> None:
        """Draw the noise of a rollout, and begin it in the buffer."""

    @abstractmethod
    def _step(self) -> None:
        """Take one step in all environments, by `_step_envs`, and store it."""

    def _count_steps(self, first: int, global_step: int) -> None:  # noqa: B027 - not every collector needs it
        """Process what does not influence actions, for steps `first` and later; global_step: before these steps."""

    @abstractmethod
    def _learn_and_normalize(self, observations: Any, first: int = 0) -> Any:
        """Update the running statistics with the new observations of environments `first` and later; return these
        observations as inputs of the network, (N - first, D)."""

    def _store_first(self, observations: Any, first: int) -> None:
        """Store the first observations of environments `first` and later; observations: of all of `envs`."""
        self.buffer.observations[self.buffer.position, first:] = self._learn_and_normalize(observations, first)

    def _reset_where_needed(self) -> None:
        if not self._reset_done:
            # global_step is added so that a resumed run without saved environments does not repeat earlier episodes.
            seed = self._seed + self.global_step + self._rows.start
            try:
                observations, _ = self._envs.reset(seed=seed)
            except VectorEnvError as error:
                error.number_among(self._rows.start, self.num_envs)
                raise
            self.buffer.observations[self.buffer.position] = self._learn_and_normalize(observations)
            self._reset_done = True

    def _step_envs(self, actions: Any) -> Any:
        result = self._call_step(actions)
        self.global_step += self.num_envs
        if self.episodes.infos is not None:
            self._keep_infos(*result[2:])
        return result

    def _call_step(self, actions: Any) -> Any:
        began = time.perf_counter()
        try:
            result = self._envs.step(actions)
        except VectorEnvError as error:
            error.number_among(self._rows.start, self.num_envs)
            raise
        self.stepping_s += time.perf_counter() - began
        return result

    def _keep_infos(self, terminated: Any, truncated: Any, infos: Mapping[str, Any]) -> None:
        """Keep the last infos of the episodes that ended in the step before `global_step`."""
        assert self.episodes.infos is not None
        for i, info in final_infos(terminated, truncated, infos).items():
            self.episodes.infos[self.global_step, self._rows.start + i] = plain_info(info)

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._started_at


def final_infos(terminated: Any, truncated: Any, infos: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The last infos of the episodes that ended in a step of a vector environment, by environment."""
    given = {name: infos[name] for name in ("episode", "_episode") if name in infos}  # RecordEpisodeStatistics
    finals = {**given, **(infos.get("final_info") or {})}
    done = terminated | truncated
    ended = np.flatnonzero(done.cpu().numpy() if isinstance(done, Tensor) else done)
    return {i: _info_of(finals, i) for i in ended.tolist()}


def _info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One environment's part of the infos that `VectorEnv._add_info` joined."""
    return {
        name: _info_of(values, index) if isinstance(values, Mapping) else values[index]
        for name, values in infos.items()
        if f"_{name}" in infos and infos[f"_{name}"][index]
    }


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """An info as plain data, without the values that are none."""
    plain: dict[str, Any] = {}
    for name, value in info.items():
        with contextlib.suppress(NotPlain):
            plain[name] = to_plain(value.cpu().numpy()[()] if isinstance(value, Tensor) else value)
    return plain


def resized(state: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """A state that `Collector.state_dict` returned between two rollouts, changed to `num_envs` environments.

    The first environments keep their entries. Environments beyond `num_envs` are dropped. Additional ones get the
    entries of a new episode, a return of 0 and an empty memory, and last observations of 0, which are replaced once
    they are known. Entries for all environments, such as statistics, are unchanged.
    """
    resize = _resizing(num_envs)
    episodes, scaler = state["episodes"], state["reward_scaler"]
    return {
        **state,
        "buffer": {**state["buffer"], "observations": resize(state["buffer"]["observations"], dim=-2)},
        "episodes": {**episodes, **{name: resize(episodes[name]) for name in ("returns", "lengths")}},
        "reward_scaler": None if scaler is None else {**scaler, "returns": resize(scaler["returns"])},
        **({"ended": resize(state["ended"])} if "ended" in state else {}),  # of environments that reset by a step
        "memory": None if state["memory"] is None else resize(state["memory"]),
    }


def _resizing(num_envs: int) -> Callable[..., Any]:
    """A function that cuts a list, or a tensor along `dim`, to num_envs elements, or fills it up with zeros."""

    def resize(of_each: list[Any] | Tensor, dim: int = 0) -> list[Any] | Tensor:
        if isinstance(of_each, list):
            return of_each[:num_envs] + [0] * (num_envs - len(of_each))
        kept = of_each.narrow(dim, 0, min(num_envs, of_each.shape[dim]))
        shape = list(kept.shape)
        shape[dim] = num_envs - shape[dim]
        return torch.cat([kept, kept.new_zeros(shape)], dim=dim)

    return resize
