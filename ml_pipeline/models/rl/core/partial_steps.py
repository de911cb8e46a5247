"""Steps groups of environments independently of each other, for `ParallelEnv.send` and `recv`.

K environments of one or more groups. This module checks only the order of the two calls.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from ml_pipeline.models.rl.core.stepping.batch import put_rows, rows_at, split, store
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Reply
from ml_pipeline.models.rl.core.stepping.results import observation_rows
from ml_pipeline.models.rl.core.workers.pool import WorkerPool


class PartialStep(NamedTuple):
    """The result of a step of K environments; the caller owns all of it.

    env_ids: int64 (K,), ascending within a group; groups are in the order in which they were sent. observations: as
    from step(), K rows. rewards: float64 (K,). terminated, truncated: bool (K,). infos: K dicts, as from single
    environments; in SAME_STEP mode, "final_obs" and "final_info" hold an episode's last observation and info.
    """

    env_ids: np.ndarray
    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[dict[str, Any]]


class PartialSteps:
    """The groups of a pool, each idle or stepping."""

    def __init__(self, pool: WorkerPool, actions: Any) -> None:
        """actions: arrays of the batch; None if actions are sent to each environment separately."""
        self._pool, self._actions = pool, actions
        self._groups = groups = pool.group_environments()
        self._layout = layout = pool.batch.layout
        self._group_of = {index: number for number, group in enumerate(groups) for index in group}
        final_obs = pool.batch.final_obs
        self._final_rows = None if final_obs is None else observation_rows(layout.observation_space, final_obs)
        self._sent: list[int] = []  # groups that are stepping, oldest first

    @property
    def is_under_way(self) -> bool:
        """Whether a sent step has not been received."""
        return bool(self._sent)

    def forget(self) -> None:
        """Abandons the pending steps; the next command waits for them and drops their results."""
        self._sent.clear()

    def send(self, actions: Any, env_ids: Iterable[int]) -> None:
        """Begins a step of these environments, which must be whole groups; action k is for `env_ids[k]`."""
        ids = [int(index) for index in env_ids]
        numbers = self._whole_groups(ids)
        if busy := [self._groups[number] for number in numbers if number in self._sent]:
            raise AlreadyPendingCallError(
                f"Environments {list(busy[0])} are already stepping; call recv() before the next send().", "send"
            )
        per_env: list[Any] | None = None
        for number in numbers:
            self._pool.drain_replies(number)  # an abandoned step may still be reading its actions
        if self._actions is None:
            per_env = [None] * self._layout.num_envs
            own = split(batch_space(self._layout.action_space, len(ids)), actions, len(ids))
            for index, action in zip(ids, own, strict=True):
                per_env[index] = action
        else:
            rows = rows_at(self._actions, np.array(ids))
            store(rows, actions, "actions")
            put_rows(self._actions, np.array(ids), rows)
        for number in numbers:
            self._pool.post(STEP, None, per_env, group=number)
            self._sent.append(number)

    def choose(self, min_ready: int, env_ids: Iterable[int] | None) -> list[int]:
        """The groups of `env_ids`; or waits for `min_ready` environments and returns all ready groups."""
        if not self._sent:
            raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "recv")
        if env_ids is not None:
            numbers = self._whole_groups([int(index) for index in env_ids])
            if resting := [self._groups[number] for number in numbers if number not in self._sent]:
                raise NoAsyncCallError(f"Environments {list(resting[0])} are not stepping; call send() first.", "recv")
            return numbers
        ready: list[int] = []
        while len(ready) < len(self._sent) and sum(len(self._groups[number]) for number in ready) < max(1, min_ready):
            ready += self._pool.wait_for_any([number for number in self._sent if number not in ready])
        return [number for number in self._sent if number in ready]

    def _whole_groups(self, ids: Sequence[int]) -> list[int]:
        unknown = [index for index in ids if index not in self._group_of]
        if unknown:
            raise ValueError(f"env_ids must be from 0 to {self._layout.num_envs - 1}, but got {unknown[0]}.")
        numbers = list(dict.fromkeys(self._group_of[index] for index in ids))
        whole = [index for number in numbers for index in self._groups[number]]
        if sorted(ids) != sorted(whole) or not ids:
            raise ValueError(
                f"env_ids must be whole groups, each environment once, but got {list(ids)}; the groups are "
                f"{[list(group) for group in self._groups]}. With num_groups=num_envs, each environment is a group."
            )
        return numbers

    def collect(self, numbers: Sequence[int]) -> PartialStep:
        """Ends the steps of these groups."""
        replies: list[tuple[int, Reply]] = []
        for number in numbers:
            self._sent.remove(number)  # also if this fails
            replies.append((number, self._pool.collect(group=number)))
        ids = np.array([index for number in numbers for index in self._groups[number]])
        batch = self._pool.batch
        observations = (
            self._joined([value for _, reply in replies for value in reply.values])
            if batch.observations is None
            else rows_at(batch.observations, ids)
        )
        infos: dict[int, dict[str, Any]] = {int(index): {} for index in ids}
        for _, reply in replies:
            self._fill(infos, reply)
        return PartialStep(
            ids, observations, batch.rewards[ids], batch.terminated[ids], batch.truncated[ids], list(infos.values())
        )

    def _fill(self, infos: dict[int, dict[str, Any]], reply: Reply) -> None:
        for index, info in reply.infos:
            infos[index].update(info)
        if not reply.finished or self._layout.autoreset_mode != AutoresetMode.SAME_STEP:
            return
        batch = self._pool.batch
        for index, observation, info in reply.finals:
            infos[index] |= {"final_obs": observation, "final_info": info}
        if self._final_rows is not None:
            for index, info in infos.items():
                if batch.terminated[index] or batch.truncated[index]:
                    info["final_obs"] = self._final_rows.read(index)
                    info.setdefault("final_info", {})

    def _joined(self, values: Sequence[Any]) -> Any:
        empty: Any = create_empty_array(self._layout.observation_space, len(values))
        return concatenate(self._layout.observation_space, values, empty)
